"""What holds for every command: help, a bad flag, a bad file, JSON, Ctrl-C, its exit code."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.main import COMMANDS, execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.runs import read

Capture = pytest.CaptureFixture[str]
MUTAGYM = (sys.executable, "-m", "mutagym")
ENCODER = "--encoder hashing:32"
TRAIN = f"--num-processes 4 --num-steps 8 --num-env-steps 64 --ppo-epoch 1 {ENCODER}"
TARGET = "--target-model sim-target --mutator-model sim-mutator"
SOLVER = "--target-model sim-solver --mutator-model sim-mutator"


@dataclass(frozen=True)
class Case:
    """A small run of a command: RUN is a training's folder, FILE completions, HOST a server."""

    small: str
    file: str = ""
    """A flag that names a file; `-`: the command's argument does."""
    json: str = "--json -"
    """What makes its results JSON on stdout; "": nothing does."""
    results: str = ""
    """The file of the run folder that holds the same."""


CASES: Mapping[str, Case] = {
    "train": Case(f"{TRAIN} {TARGET}", "--queries", results="summary.json"),
    "eval": Case(
        f"-p fixed:noop --max-steps 1 --baselines random --episodes 4 {ENCODER} {TARGET}",
        *("--guard-queries", "--json -", "report.json"),
    ),
    "evolve": Case(
        f"--population-size 6 --max-generations 1 --panel-size 5 {SOLVER}",
        *("--task", "--json -", "report.json"),
    ),
    "select": Case(
        "--models sim-solver,sim-solver-large --selector brute_force",
        *("--task", "--json -", "report.json"),
    ),
    "optimize": Case(
        f"--steps 8 --batch-size 4 --num-candidates 2 --encoder hashing:32 {SOLVER}",
        *("--task", "--json -", "report.json"),
    ),
    "ask": Case(f"--policy RUN why? {TARGET}", "--policy", "--json"),
    "judge": Case("FILE --reward judge --judge-model sim-judge", "-"),
    "rescore": Case("RUN --reward judge --judge-model sim-judge", "-"),
    "replay": Case("RUN", "-"),
    "bench": Case(
        "--num-processes 2 --num-steps 2 --schedules lanes --target-model sim-target", "--queries"
    ),
    "doctor": Case(f"{TARGET} --seconds 20"),
    "report": Case("RUN", "-", ""),
    "proxy": Case(f"RUN --port 0 {TARGET}", "", ""),
    "serve": Case("--port 0", "", ""),
}
"""Every command."""
OWN_FOLDER = {name for name, case in CASES.items() if case.results}
ANNOUNCE = OWN_FOLDER - {"train"}
"""They say before they begin how many calls they make at most."""
WITHOUT_SERVER = {"replay", "report", "serve"}


@pytest.fixture(scope="module")
def files(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What the words of a case stand for."""
    file = tmp_path_factory.mktemp("files") / "completions.csv"
    with file.open("w", encoding="utf-8", newline="") as rows:
        pairs = [[f"How do I kill process {n}?", f"Send it signal {n}."] for n in range(99)]
        csv.writer(rows).writerows([["prompt", "completion"], *pairs])
    return {"RUN": str(trained_run), "FILE": str(file)}


def line(command: str, files: Mapping[str, str], host: str, folder: Path) -> list[str]:
    """The command line of a case."""
    words = [files.get(word, word) for word in CASES[command].small.split()]
    server = [] if command in WITHOUT_SERVER else ["--ollama-host", host]
    run_dir = ["--run-dir", str(folder)] if command in OWN_FOLDER else []
    output = ["-o", str(folder.with_suffix(".html"))] if command == "report" else []
    return [command, *words, *server, *run_dir, *output]


def error_of(capsys: Capture, *arguments: str) -> str:
    """The one line of an error with exit code 2."""
    assert execute(arguments) == 2
    out, err = capsys.readouterr()
    *notes, last = err.splitlines()
    assert (out, last[:9]) == ("", "mutagym: ")
    assert not any("Traceback" in note for note in notes)
    return last


def test_no_command_is_left_out() -> None:
    assert CASES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("command", CASES)
def test_help_says_what_it_takes(command: str, capsys: Capture) -> None:
    assert execute((command, "--help")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    own = CASES[command].file.strip("-")
    assert all(word in out for word in (f"mutagym {command}", "--quiet", "--config", own))


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys; from cli.main import execute as do; do(['--help']); do(['train', '--help']);"
        "heavy = {'torch', 'sentence_transformers', 'stable_baselines3', 'scipy'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", CASES)
def test_a_flag_that_there_is_not_is_named(
    command: str, files: Mapping[str, str], tmp_path: Path, capsys: Capture
) -> None:
    arguments = line(command, files, "http://127.0.0.1:9", tmp_path / "run")
    assert "--no-such-flag" in error_of(capsys, *arguments, "--no-such-flag", "1")
    assert "--config" in error_of(capsys, *arguments, "--config", "missing.toml")
    assert not (tmp_path / "run").exists()


FILES = (
    *((name, case.file) for name, case in CASES.items() if case.file),
    *(("train", flag) for flag in ("--config", "--mutators", "--judge-accuracy", "--judge-rubric")),
    *(("eval", flag) for flag in ("-m", "-p")),
    *(("select", flag) for flag in ("--prompts", "--evaluate", "--resume")),
)


@pytest.mark.parametrize(("command", "flag"), FILES)
def test_a_file_that_cannot_be_what_it_is_named_for_is_one_line(
    command: str,
    flag: str,
    files: Mapping[str, str],
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    """It is missing, a folder, or no text."""
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "bytes.jsonl").write_bytes(bytes(range(256)))
    for odd in ("missing.jsonl", "folder.jsonl", "bytes.jsonl"):
        file = str(tmp_path / odd)
        if flag == "-":
            given = [command, file]
        elif flag == "--policy":
            given = [command, "why?", flag, file]
        else:
            case = (
                []
                if flag == "--resume"
                else line(command, files, simulator.host, tmp_path / odd[0])[1:]
            )
            judged = ["--reward", "judge", "--judge-model", "sim-judge"] if "judge" in flag else []
            given = [command, *case, *judged, flag, file]
        last = error_of(capsys, *given)
        assert flag.strip("-") in last.split() or odd in last, last


@pytest.mark.parametrize("command", [name for name, case in CASES.items() if case.json])
def test_results_are_json_on_stdout(
    command: str,
    files: Mapping[str, str],
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    """Nothing else is said when it is quiet; else, before it begins, how many calls it makes."""
    case, run = CASES[command], tmp_path / "run"
    quiet = [] if command in ANNOUNCE else ["--quiet"]
    assert execute((*line(command, files, simulator.host, run), *case.json.split(), *quiet)) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    if case.results:
        assert found == read(run, case.results)
    if command != "replay":
        assert '"simulated": true' in json.dumps(found)
    if quiet:
        assert err == ""
        return
    spent = read(run, "summary.json")
    (most,) = re.findall(r"^run folder .*, at most ([\d,]+) calls$", err, re.MULTILINE)
    assert spent["calls"] + spent["cache_hits"] <= int(most.replace(",", ""))


def test_what_a_users_function_prints_does_not_spoil_the_json(
    files: Mapping[str, str], simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def label(query, reply):\n    print('called')\n    return 'answered'\n")
    for command in ("bench", "rescore", "train"):
        arguments = line(command, files, simulator.host, tmp_path / command)
        kept = [word for word in arguments if word not in {"--reward", "judge"}]
        assert execute((*kept, "--json", "-", "--reward", f"{code}:label")) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)
        assert "called" in err


@pytest.fixture(scope="module")
def slow() -> Iterator[EmbeddedServer]:
    """A server that takes its time."""
    with EmbeddedServer(Settings(slots=2, time_scale=1.0)) as server:
        yield server


@pytest.mark.parametrize("command", ["judge", "doctor", "serve"])
def test_ctrl_c_is_one_line_and_its_code(
    command: str, files: Mapping[str, str], slow: EmbeddedServer, tmp_path: Path
) -> None:
    """Of a command with a run folder: tests/cli/test_resume_lines.py."""
    arguments = line(command, files, slow.host, tmp_path / "run")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    variables = os.environ | {"OLLAMA_NUM_PARALLEL": "5"}
    with subprocess.Popen([*MUTAGYM, *arguments], text=True, env=variables, **streams) as process:  # type: ignore[call-overload]  # noqa: S603 - our own words
        first = (process.stdout if command == "serve" else process.stderr).readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().splitlines()
    if command == "serve":  # it serves until then, with Ollama's own variables
        assert (process.returncode, ": 5 slots a model" in first) == (0, True)
        return
    assert process.returncode == 130
    assert said[-1] == "mutagym: stopped by SIGINT"


INTERRUPTED_IMPORT = """
import os, signal, sys
import mutagym

class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)

assert not {"cyclopts", "numpy", "rich"} & set(sys.modules)
sys.meta_path.insert(0, CtrlC())
sys.argv = ["mutagym", "--help"]
mutagym.main()
"""


def test_ctrl_c_while_the_command_is_imported_is_one_line() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mutagym: stopped by SIGINT\n")


def test_streams_that_are_closed_or_break_end_no_run(
    files: Mapping[str, str], simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """As those of a job in the background whose terminal is gone."""
    runs = {'"$@" <&- >&- 2>&-': tmp_path / "closed", '"$@"': tmp_path / "broken"}
    processes = []
    with ExitStack() as stack:
        for redirected, run in runs.items():
            arguments = line("select", files, simulator.host, run)
            process = stack.enter_context(
                subprocess.Popen(  # noqa: S603 - our own words
                    ["/bin/sh", "-c", redirected, "sh", *MUTAGYM, *arguments],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            )
            assert process.stderr
            process.stderr.close()
            processes.append(process)
    assert [process.returncode for process in processes] == [0, 0]
    assert all(read(run)["combinations"] for run in runs.values())


def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word(
    files: Mapping[str, str], simulator: EmbeddedServer, tmp_path: Path
) -> None:
    arguments = [*line("judge", files, simulator.host, tmp_path / "run"), "--quiet"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*MUTAGYM, *arguments], **streams) as process:  # type: ignore[call-overload]  # noqa: S603 - our own words
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


ERRORS = {
    "--ollama-host http://127.0.0.1:9": ["127.0.0.1:9", "ollama serve"],
    "--mutators paraphrse": ["paraphrse", "paraphrase"],
    "--lr fast": ["--lr", "fast"],
    "--lr inf": ["--lr", "inf"],
    "--num-mini-batch 5": ["--num-mini-batch 5", "4 x 8 = 32", "4 or 8"],
    "--no-batching --schedule phased": ["--no-batching", "--schedule phased"],
    "--max-in-flight many": ["--max-in-flight", "'auto'", "'many'"],
    "--config=a.toml --config=b.toml": ["--config"],
    "--json missing/x.json": ["--json", "missing/x.json"],
    "--num-steps 4.5": ["--num-steps", "4.5"],
    "--seed 4294967296": ["--seed", "4294967296"],
    "--target-model llama3.2": ["ollama pull llama3.2"],
    "--encoder ollama:nope": ["ollama pull nope"],
    "--queries missing.csv": ["--queries", "missing.csv"],
    "--lr 0.1 stray": ["'stray'"],
}


@pytest.mark.parametrize("flags", ERRORS)
def test_what_a_user_can_mend_is_one_line_that_says_how(
    flags: str, files: Mapping[str, str], simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    kept = {flag for flag in flags.replace("=", " ").split() if flag.startswith("--")}
    words = line("train", files, simulator.host, tmp_path / "run")
    pairs = zip(words[1::2], words[2::2], strict=True)
    rest = [word for flag, value in pairs if flag not in kept for word in (flag, value)]
    last = error_of(capsys, "--quiet", "train", *rest, *flags.split())
    assert all(word in last for word in ERRORS[flags]), last


def test_what_is_missing_is_named(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    for arguments, needed in (
        (("ask", "why?"), "--policy"),
        (("ask", "--policy"), "--policy"),
        (("proxy",), "RUN"),
        (("judge",), "FILE"),
        (("trian",), "train"),
        (("serve", "--port", simulator.host.rpartition(":")[2]), "--port"),
    ):
        assert needed in error_of(capsys, *arguments)
    without_model = error_of(capsys, "train", "--ollama-host", simulator.host)
    assert all(word in without_model for word in ("--target-model", "sim-target"))
    (tmp_path / "mine").write_text("x")
    assert "not empty" in error_of(capsys, "train", "--run-dir", str(tmp_path))
    assert "is not a folder" in error_of(capsys, "train", "--run-dir", str(tmp_path / "mine"))


def test_completion_is_installed_for_a_shell(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert execute(("--install-completion", "--shell", "bash")) == 0
    (script,) = tmp_path.rglob("completions/mutagym")
    assert str(script) in capsys.readouterr().out
    assert "--population-size" in script.read_text()
