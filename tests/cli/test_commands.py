"""What holds for every command: help, a bad flag, a bad file, JSON, Ctrl-C, its exit code."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import COMMANDS, execute
from records.interrupt import interruptible
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.threads import start, wait_until
from tests.runs import read, send_signal

Capture = pytest.CaptureFixture[str]
Line = Callable[..., list[str]]
MUTAGYM = (sys.executable, "-m", "mutagym")
TARGET = "--target-model sim-target --mutator-model sim-mutator"
SOLVER = "--target-model sim-solver --mutator-model sim-mutator"
TRAIN = "--num-processes 4 --num-steps 8 --num-env-steps 64 --ppo-epoch 1 --encoder hashing:32"
SMALL = {
    "train": f"{TRAIN} {TARGET} --ollama-host HOST --run-dir NEW",
    "headroom": "--mutators noop,add_politeness --refused 2 --encoder hashing:32 "
    f"{TARGET} --ollama-host HOST",
    "eval": "-p fixed:noop --max-steps 1 --baselines random --episodes 4 --encoder hashing:32 "
    f"{TARGET} --ollama-host HOST --run-dir NEW",
    "evolve": "--population-size 6 --max-generations 1 --panel-size 5 "
    f"{SOLVER} --ollama-host HOST --run-dir NEW",
    "select": "--models sim-solver,sim-solver-large --selector brute_force "
    "--ollama-host HOST --run-dir NEW",
    "optimize": "--steps 8 --batch-size 4 --num-candidates 2 --encoder hashing:32 "
    f"{SOLVER} --ollama-host HOST --run-dir NEW",
    "ask": f"--policy RUN why? {TARGET} --ollama-host HOST",
    "judge": "FILE --reward judge --judge-model sim-judge --ollama-host HOST",
    "rescore": "RUN --reward judge --judge-model sim-judge --ollama-host HOST",
    "replay": "RUN",
    "bench": "--num-processes 2 --num-steps 2 --schedules lanes --target-model sim-target "
    "--ollama-host HOST",
    "doctor": f"{TARGET} --seconds 20 --ollama-host HOST",
    "report": "RUN -o NEW.html",
    "proxy": f"RUN --port 0 {TARGET} --ollama-host HOST",
    "serve": "--port 0",
}
"""A small run of every command: RUN is a training's folder, FILE completions, HOST a server."""
RESULTS = {"train": "summary.json"} | dict.fromkeys(
    ("eval", "evolve", "select", "optimize"), "report.json"
)
"""For each command with a run folder, the file in it that holds what its JSON does."""
FILES = {
    "train": "--queries --config --mutators --judge-accuracy --judge-rubric",
    "headroom": "--queries --guard-queries",
    "eval": "--guard-queries -m -p",
    "select": "--task --prompts --evaluate --resume",
    **dict.fromkeys(("evolve", "optimize"), "--task"),
    "bench": "--queries",
    "ask": "--policy",
    **dict.fromkeys(("judge", "rescore", "replay", "report"), "-"),
}
"""The flags that name a file; `-`: the command's argument does."""


@pytest.fixture
def line(trained_run: Path, simulator: EmbeddedServer, tmp_path: Path) -> Line:
    """The words of a small run of a command."""
    file = tmp_path / "completions.csv"
    with file.open("w", encoding="utf-8", newline="") as rows:
        pairs = [[f"How do I kill process {n}?", f"Send it signal {n}."] for n in range(99)]
        csv.writer(rows).writerows([["prompt", "completion"], *pairs])
    stands = {"RUN": trained_run, "FILE": file, "NEW": tmp_path / "run", "HOST": simulator.host}

    def words(command: str, **others: str) -> list[str]:
        text = f"{command} {SMALL[command]}"
        for name, value in (stands | others).items():
            text = text.replace(name, str(value))
        return text.split()

    return words


def error_of(capsys: Capture, *arguments: str) -> str:
    """The one line of an error with exit code 2."""
    assert execute(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, "Traceback" in err) == ("", False)
    last = err.splitlines()[-1]
    assert last.startswith("mutagym: ")
    return last


def test_every_command_has_help_that_says_what_it_takes(capsys: Capture) -> None:
    assert SMALL.keys() == COMMANDS.keys()
    for command in SMALL:
        assert execute((command, "--help")) == 0
        out, err = capsys.readouterr()
        assert err == ""
        flags = FILES.get(command, "").removeprefix("-").split()
        words = (f"mutagym {command}", "--quiet", "--config", *flags)
        assert all(word in out for word in words), command


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys; from cli.main import execute as do; do(['--help']); do(['train', '--help']);"
        "heavy = {'torch', 'sentence_transformers', 'stable_baselines3', 'scipy'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", SMALL)
def test_a_flag_that_there_is_not_is_named(
    command: str, line: Line, tmp_path: Path, capsys: Capture
) -> None:
    words = line(command, HOST="http://127.0.0.1:9")
    assert "--no-such-flag" in error_of(capsys, *words, "--no-such-flag", "1")
    assert "--config" in error_of(capsys, *words, "--config", "missing.toml")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "flag"),
    [(command, flag) for command, flags in FILES.items() for flag in flags.split()],
)
def test_a_file_that_cannot_be_what_it_is_named_for_is_one_line(
    command: str, flag: str, line: Line, tmp_path: Path, capsys: Capture
) -> None:
    """It is missing, a folder, or no text."""
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "bytes.jsonl").write_bytes(bytes(range(256)))
    judged = ["--reward", "judge", "--judge-model", "sim-judge"] if "judge" in flag else []
    for odd in ("missing.jsonl", "folder.jsonl", "bytes.jsonl"):
        file = str(tmp_path / odd)
        words = {
            "-": [command, file],
            "--policy": [command, "why?", flag, file],
            "--resume": [command, flag, file],
        }.get(flag, [*line(command), *judged, flag, file])
        last = error_of(capsys, *words)
        assert flag.strip("-") in last.split() or odd in last, last


@pytest.mark.parametrize("command", sorted(SMALL.keys() - {"report", "proxy", "serve"}))
def test_results_are_json_on_stdout(
    command: str, line: Line, tmp_path: Path, capsys: Capture
) -> None:
    """Nothing else is said when it is quiet; else, before it begins, how many calls it makes."""
    says_calls = RESULTS.get(command) == "report.json"
    json_flag = ["--json"] if command == "ask" else ["--json", "-"]
    assert execute((*line(command), *json_flag, *([] if says_calls else ["--quiet"]))) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert '"simulated": true' in json.dumps(found) or command == "replay"
    if command in RESULTS:
        assert found == read(tmp_path / "run", RESULTS[command])
    if not says_calls:
        assert err == ""
        return
    spent = read(tmp_path / "run", "summary.json")
    (most,) = re.findall(r"^run folder .*, at most ([\d,]+) calls$", err, re.MULTILINE)
    assert spent["calls"] + spent["cache_hits"] <= int(most.replace(",", ""))


def test_what_a_users_function_prints_does_not_spoil_the_json(
    line: Line, tmp_path: Path, capsys: Capture
) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def label(query, reply):\n    print('called')\n    return 'refused'\n")
    for command in ("bench", "rescore", "train"):
        words = [word for word in line(command) if word not in {"--reward", "judge"}]
        assert execute((*words, "--json", "-", "--reward", f"{code}:label")) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)
        assert "called" in err


# --- signals and streams ------------------------------------------------------


@pytest.mark.parametrize("command", ["judge", "doctor"])
def test_ctrl_c_is_one_line_and_its_code(command: str, line: Line, capsys: Capture) -> None:
    """Of a command with a run folder: tests/cli/test_resume_lines.py."""
    with EmbeddedServer(Settings(slots=2, time_scale=1.0)) as slow, interruptible():

        def interrupt() -> None:
            wait_until(lambda: slow.stats()["in_flight"] > 0)
            send_signal(signal.SIGINT)

        interrupting = start(interrupt)
        assert execute(line(command, HOST=slow.host)) == 130
        interrupting.result(timeout=0)
    assert capsys.readouterr().err.splitlines()[-1] == "mutagym: stopped by SIGINT"


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


def process(*command: str, **options: object) -> subprocess.Popen[str]:
    """A process of ours that has begun."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **streams | options)  # type: ignore[call-overload,no-any-return]  # noqa: S603 - our own words


def test_ctrl_c_while_the_command_is_imported_is_one_line() -> None:
    with process(sys.executable, "-c", INTERRUPTED_IMPORT) as importing:
        said = importing.communicate()
    assert (importing.returncode, said) == (130, ("", "mutagym: stopped by SIGINT\n"))


def test_a_server_serves_until_ctrl_c_by_ollamas_own_variables(line: Line) -> None:
    variables = os.environ | {"OLLAMA_NUM_PARALLEL": "5"}
    with process(*MUTAGYM, *line("serve"), env=variables) as serving:
        assert serving.stdout
        first = serving.stdout.readline()
        serving.send_signal(signal.SIGINT)
    assert (serving.returncode, ": 5 slots a model" in first) == (0, True)


@pytest.mark.parametrize("redirected", ['"$@" <&- >&- 2>&-', '"$@"'], ids=["closed", "broken"])
def test_streams_that_are_closed_or_break_end_no_command(
    redirected: str, line: Line, tmp_path: Path
) -> None:
    """As those of a job in the background whose terminal is gone."""
    words = [*MUTAGYM, *line("judge"), "--json", str(tmp_path / "out.json")]
    shell = ("/bin/sh", "-c", redirected, "sh")
    with process(*shell, *words, stdout=subprocess.DEVNULL) as judging:
        assert judging.stderr
        judging.stderr.close()
    assert judging.returncode == 0
    assert read(tmp_path, "out.json")["simulated"]


@pytest.mark.parametrize("flag", ["--quiet", "--help"])
def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word(
    flag: str, line: Line
) -> None:
    with process(*MUTAGYM, *line("judge"), flag) as judging:
        assert judging.stdout
        assert judging.stderr
        judging.stdout.close()
        said = judging.stderr.read()
    assert (judging.returncode, said) == (141, "")


def test_another_pipe_that_breaks_is_one_line(
    trained_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    page = tmp_path / "page.html"
    os.mkfifo(page)
    reading = threading.Thread(target=lambda: page.open("rb").close())
    reading.start()  # a pipe holds less than a page
    assert execute(("report", str(trained_run), "-o", str(page))) == 1
    reading.join()
    said = capsys.readouterr().err.splitlines()
    assert said == ["mutagym: BrokenPipeError: [Errno 32] Broken pipe"]


# --- errors -------------------------------------------------------------------

ERRORS = {
    "train --ollama-host http://127.0.0.1:9": ["127.0.0.1:9", "ollama serve"],
    "train --mutators paraphrse": ["paraphrse", "paraphrase"],
    "train --lr fast": ["--lr", "fast"],
    "train --lr inf": ["--lr", "inf"],
    "train --num-mini-batch 5": ["--num-mini-batch 5", "4 x 8 = 32", "4 or 8"],
    "train --no-batching --schedule phased": ["--no-batching", "--schedule phased"],
    "train --max-in-flight many": ["--max-in-flight", "'auto'", "'many'"],
    "train --config=a.toml --config=b.toml": ["--config"],
    "train --judge-accuracy missing --ollama-host http://127.0.0.1:9": ["--judge-accuracy"],
    "train --json missing/x.json": ["--json", "missing/x.json"],
    "train --num-steps 4.5": ["--num-steps", "4.5"],
    "train --seed 4294967296": ["--seed", "4294967296"],
    "train --target-model llama3.2": ["ollama pull llama3.2"],
    "train --encoder ollama:nope": ["ollama pull nope"],
    "train --queries missing.csv": ["--queries", "missing.csv"],
    "train --lr 0.1 stray": ["'stray'"],
    "train --ollama-host HOST": ["--target-model", "sim-target"],
    "ask why?": ["--policy"],
    "ask --policy": ["--policy"],
    "proxy": ["RUN"],
    "judge": ["FILE"],
    "trian": ["train"],
    "serve --port PORT": ["--port"],
}


@pytest.mark.parametrize("words", ERRORS)
def test_what_a_user_can_mend_is_one_line_that_says_how(
    words: str, line: Line, simulator: EmbeddedServer, capsys: Capture
) -> None:
    given = words.replace("HOST", simulator.host).replace("PORT", simulator.host.split(":")[-1])
    command, *flags = given.split()
    if command == "train" and "HOST" not in words:
        whole, named = line("train")[1:], given.replace("=", " ").split()
        pairs = zip(whole[::2], whole[1::2], strict=True)
        flags += [word for flag, value in pairs if flag not in named for word in (flag, value)]
    last = error_of(capsys, "--quiet", command, *flags)
    assert all(word in last for word in ERRORS[words]), last


def test_completion_is_installed_for_a_shell(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert execute(("--install-completion", "--shell", "bash")) == 0
    (script,) = tmp_path.rglob("completions/mutagym")
    assert str(script) in capsys.readouterr().out
    assert "--population-size" in script.read_text()
