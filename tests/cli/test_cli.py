"""The command line: one clear line and exit code 2 for what a user can mend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer

NOBODY = "http://127.0.0.1:9"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of an error with exit code 2."""
    assert execute(arguments) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert captured.out == ""
    return lines[0]


def test_a_users_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    table: list[tuple[tuple[str, ...], list[str]]] = [
        (("--ollama-host", NOBODY, "--target-model", "m"), ["127.0.0.1:9", "ollama serve"]),
        (("--queries", "missing.csv"), ["missing.csv"]),
        (("--mutators", "paraphrse"), ["paraphrse", "paraphrase"]),
        (("--num-proceses", "4"), ["--num-proceses", "--num-processes"]),
        (("--lr", "fast"), ["--lr", "fast"]),
        (("--lr", "-1"), ["--lr", "> 0"]),
        (("--num-mini-batch", "5"), ["--num-mini-batch 5", "16 x 32 = 512", "4 or 8"]),
        (("--no-batching", "--schedule", "phased"), ["--no-batching", "--schedule phased"]),
        (("--max-in-flight", "0"), ["--max-in-flight", "'auto'", "'0'"]),
        (("--max-in-flight", "many"), ["--max-in-flight", "'auto'", "'many'"]),
        (("--config", "missing.toml"), ["missing.toml"]),
        (("--config",), ["--config names '.'"]),
        (("--config=a.toml", "--config=b.toml"), ["--config is given twice"]),
        (("--json", "missing/x.json"), ["--json", "missing/x.json"]),
        (("--num-steps", "4.5"), ["--num-steps", "4.5"]),
        (("--lr", "inf"), ["--lr", "inf"]),
        (("--seed", "4294967296"), ["--seed", "4294967296"]),
        (("--call-timeout-s", "inf"), ["--call-timeout-s"]),
        (("--slots", "0"), ["--slots"]),
    ]
    for arguments, says in table:
        line = refused(capsys, "train", *arguments)
        assert all(word in line for word in says), line


@pytest.mark.parametrize(
    ("arguments", "needed"), [(("ask", "why?"), "--policy"), (("proxy",), "RUN"), (("judge",), "FILE")]
)
def test_what_is_missing_is_named(
    arguments: tuple[str, ...], needed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 2
    assert capsys.readouterr().err.startswith(f"mutagym: {arguments[0]} needs {needed}: ")
    assert execute(("ask", "--policy")) == 2
    assert "--policy requires an argument" in capsys.readouterr().err


def test_a_model_that_is_not_pulled_is_named_with_the_way_to_pull_it(
    capsys: pytest.CaptureFixture[str], simulator: EmbeddedServer
) -> None:
    line = refused(capsys, "train", "--ollama-host", simulator.host, "--target-model", "llama3.2")
    assert "ollama pull llama3.2" in line


def test_a_real_host_with_no_model_named_lists_what_it_has(
    capsys: pytest.CaptureFixture[str], simulator: EmbeddedServer
) -> None:
    line = refused(capsys, "train", "--ollama-host", simulator.host)
    assert "--target-model" in line
    assert "sim-target" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num-proceses = 4\n", ["num-proceses", "num-processes"]),
        ('lr = "fast"\n', ["lr", "fast"]),
        ("lr = = 1\n", ["not a TOML file", "line 1"]),
        ("num-steps = 4.5\n", ["num-steps", "4.5"]),
        ("no-batching = true\n", ["no-batching", "batching = false"]),
        ("[train]\nnum-steps = 4\n", ["[train]", "at the top"]),
    ],
)
def test_a_bad_key_or_value_in_the_config_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, says: list[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    line = refused(capsys, "train", "--config", str(path))
    assert all(word in line for word in says), line


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [("empty.csv", "", ["empty.csv"]), ("odd.csv", "text,tag\na,b\n", ["'text', 'tag'", "--prompt-column"])],
)
def test_a_bad_query_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, says: list[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    line = refused(capsys, "train", "--queries", str(path))
    assert all(word in line for word in says), line


def test_an_encoders_model_that_is_not_pulled_is_one_line(
    capsys: pytest.CaptureFixture[str], simulator: EmbeddedServer
) -> None:
    models = ("--target-model", "sim-target", "--encoder", "ollama:nope")
    assert "ollama pull nope" in refused(capsys, "train", "--ollama-host", simulator.host, *models)


def test_a_run_folder_that_holds_something_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("x")
    assert "not empty" in refused(capsys, "train", "--run-dir", str(tmp_path))
    assert "is not a folder" in refused(capsys, "train", "--run-dir", str(tmp_path / "mine"))


def test_help_imports_neither_torch_nor_sentence_transformers() -> None:
    code = (
        "import sys; from cli.main import execute; execute(['--help']); execute(['train', '--help']);"
        "heavy = {'torch', 'sentence_transformers', 'stable_baselines3', 'scipy'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--use-batching --no-batching" in done.stdout


def test_a_wrong_command_names_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert "train" in refused(capsys, "trian")


@pytest.mark.soak
def test_a_benchmark_is_stopped_by_a_signal_with_one_line_and_its_code() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.launch", "bench", "--ollama-host", "embedded", "--num-steps", "100000"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    assert process.stderr.readline() == "sequential: 16 lanes, 1 workers, seed 0 ...\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[1].splitlines()[-1] == "mutagym: stopped by SIGTERM"
    assert process.returncode == 143


def test_a_benchmark_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--schedules" in refused(capsys, "bench", "--schedules", "")
    assert "--sweep-lanes" in refused(capsys, "bench", "--sweep-lanes", "4,none")


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str], simulator: EmbeddedServer) -> None:
    line = refused(capsys, "serve", "--port", simulator.host.rpartition(":")[2])
    assert "--port" in line


def test_serve_takes_ollamas_variables_says_where_it_listens_and_ends_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "cli.launch", "serve", "--port", "0"]
    environment = os.environ | {"OLLAMA_NUM_PARALLEL": "5"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603 - our own words
    assert process.stdout
    said = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    process.stdout.close()
    assert said.startswith("simulated Ollama server at http://127.0.0.1:")
    assert ": 5 slots a model" in said
