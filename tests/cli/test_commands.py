"""What holds for every command: help, a bad flag, a bad file, JSON, Ctrl-C, how it goes on, its exit code."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.main import COMMANDS, execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.runs import read

MUTAGYM = (sys.executable, "-m", "mutagym")
TRAIN = "--num-processes 4 --num-steps 8 --num-env-steps 64 --ppo-epoch 1 --encoder hashing:32"
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
    long: str | None = None
    """Flags that make it take its time; None: it is over in no time."""


CASES: Mapping[str, Case] = {
    "train": Case(
        f"{TRAIN} {TARGET}", "--queries", results="summary.json", long="--num-env-steps 64000"
    ),
    "eval": Case(
        f"-p noop --baselines random --episodes 4 --encoder hashing:32 {TARGET}",
        *("--guard-queries", "--json -", "report.json", "--episodes 150"),
    ),
    "evolve": Case(
        f"--population-size 6 --max-generations 1 --panel-size 5 --rate-limit-per-minute 0 {SOLVER}",
        *("--task", "--json -", "report.json", "--max-generations 50"),
    ),
    "select": Case(
        "--models sim-solver,sim-solver-large",
        "--task",
        results="report.json",
        long="--selector brute_force",
    ),
    "optimize": Case(
        f"--steps 8 --batch-size 4 --num-candidates 2 --encoder hashing:32 {SOLVER}",
        *("--task", "--json -", "report.json", "--steps 4000"),
    ),
    "ask": Case(f"--policy RUN why? {TARGET}", "--policy", "--json", long=""),
    "judge": Case("FILE --reward judge --judge-model sim-judge", "-", long=""),
    "rescore": Case("RUN --reward judge --judge-model sim-judge", "-", long=""),
    "replay": Case("RUN", "-"),
    "bench": Case(
        "--num-processes 2 --num-steps 2 --schedules lanes --target-model sim-target",
        *("--queries", "--json -", "", "--num-steps 10000"),
    ),
    "doctor": Case(f"{TARGET} --seconds 20", long=""),
    "report": Case("RUN", "-", ""),
    "proxy": Case(f"RUN --port 0 {TARGET}", "", "", long=""),
    "serve": Case("--port 0", "", "", long=""),
}
"""Every command."""
OWN_FOLDER = {name for name, case in CASES.items() if case.results}
WITHOUT_SERVER = {"replay", "report", "serve"}


@pytest.fixture(scope="module")
def files(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What the words of a case stand for."""
    file = tmp_path_factory.mktemp("files") / "completions.csv"
    with file.open("w", encoding="utf-8", newline="") as rows:
        pairs = [[f"How do I kill process {n}?", f"Send it signal {n}."] for n in range(400)]
        csv.writer(rows).writerows([["prompt", "completion"], *pairs])
    return {"RUN": str(trained_run), "FILE": str(file)}


def line(
    command: str, files: Mapping[str, str], host: str, folder: Path, more: str = ""
) -> list[str]:
    """The command line of a case."""
    words, own = CASES[command].small.split(), more.split()
    again = {place for place, word in enumerate(words) if word.startswith("--") and word in own}
    words = [word for place, word in enumerate(words) if not {place, place - 1} & again] + own
    server = [] if command in WITHOUT_SERVER else ["--ollama-host", host]
    run_dir = ["--run-dir", str(folder)] if command in OWN_FOLDER else []
    output = ["-o", str(folder.with_suffix(".html"))] if command == "report" else []
    return [command, *(files.get(word, word) for word in words), *server, *run_dir, *output]


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
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
def test_help_says_what_it_does_and_what_it_takes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute((command, "--help")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(word in out for word in (f"mutagym {command}", "--quiet", "--config"))
    own = CASES[command].file
    assert own.strip("-") in out


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys; from cli.main import execute; execute(['--help']); execute(['train', '--help']);"
        "heavy = {'torch', 'sentence_transformers', 'stable_baselines3', 'scipy'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    assert done.returncode == 0, done.stderr
    assert "--use-batching --no-batching" in done.stdout


@pytest.mark.parametrize("command", CASES)
def test_a_flag_that_there_is_not_is_named(
    command: str, files: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = line(command, files, "http://127.0.0.1:9", tmp_path / "run")
    assert "--no-such-flag" in error_of(capsys, *arguments, "--no-such-flag", "1")
    assert "--config" in error_of(capsys, *arguments, "--config", "missing.toml")
    assert not (tmp_path / "run").exists()


@pytest.fixture(params=["a device without an end", "brackets", "a folder", "bytes", "nothing"])
def odd_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path with what no command takes."""
    path = tmp_path / "odd.jsonl"
    match request.param:
        case "a device without an end":
            path = Path("/dev/zero")
        case "brackets":
            path.write_text("[" * 100_000)
        case "a folder":
            path.mkdir()
        case "bytes":
            path.write_bytes(bytes(range(256)))
    return path


MORE_FILES = (
    *(("train", flag) for flag in ("--config", "--mutators", "--judge-accuracy", "--judge-rubric")),
    *(("eval", flag) for flag in ("--judge-accuracy", "-m", "-p")),
    *(("select", flag) for flag in ("--prompts", "--evaluate")),
    *((command, "--resume") for command in sorted(OWN_FOLDER)),
)
TEXTS = ("--judge-rubric", "--prompts")
"""Flags whose file may hold any text."""


@pytest.mark.parametrize(
    ("command", "flag"),
    [*((name, case.file) for name, case in CASES.items() if case.file), *MORE_FILES],
)
def test_a_file_that_cannot_be_what_it_is_named_for_is_one_line(
    command: str,
    flag: str,
    odd_file: Path,
    files: Mapping[str, str],
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if flag in TEXTS and odd_file.is_file() and odd_file.read_bytes().startswith(b"["):
        return
    if flag == "-":
        given = [command, str(odd_file)]
    elif flag == "--policy":
        given = [command, "why?", flag, str(odd_file)]
    else:
        folder = (
            []
            if flag == "--resume"
            else [*line(command, files, simulator.host, tmp_path / "run")[1:]]
        )
        judged = ["--reward", "judge", "--judge-model", "sim-judge"] if "judge" in flag else []
        given = [command, *folder, *judged, flag, str(odd_file)]
    last = error_of(capsys, *given)
    assert flag.strip("-") in last.split() or odd_file.name in last, last


@pytest.mark.parametrize("command", [name for name, case in CASES.items() if case.json])
def test_results_are_json_on_stdout_and_nothing_else_is_said(
    command: str,
    files: Mapping[str, str],
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case, run = CASES[command], tmp_path / "run"
    arguments = line(command, files, simulator.host, run, f"--quiet {case.json}")
    assert execute(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    if case.results:
        assert found == read(run, case.results)
    if command != "replay":
        assert '"simulated": true' in json.dumps(found)


ANNOUNCED = {
    "eval": "-p fixed:noop --max-steps 1",
    "evolve": "",
    "select": "--selector brute_force",
    "optimize": "",
}


@pytest.mark.parametrize("command", ANNOUNCED)
def test_a_run_says_beforehand_how_many_calls_it_makes_at_most(
    command: str,
    files: Mapping[str, str],
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = line(command, files, simulator.host, tmp_path / "run", ANNOUNCED[command])
    assert execute(arguments) == 0
    spent = read(tmp_path / "run", "summary.json")
    made = spent["calls"] + spent["cache_hits"]
    (most,) = re.findall(
        r"^run folder .*, at most ([\d,]+) calls$", capsys.readouterr().err, re.MULTILINE
    )
    assert made <= int(most.replace(",", ""))
    if command == "select":
        assert made == int(most.replace(",", ""))


def test_what_a_users_function_prints_does_not_spoil_the_json(
    files: Mapping[str, str],
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = tmp_path / "mine.py"
    code.write_text(
        "print('imported')\ndef label(query, reply):\n    print('called')\n    return 'answered'\n"
    )
    for command in ("bench", "rescore", "train"):
        arguments = line(command, files, simulator.host, tmp_path / command, "--json -")
        kept = [word for word in arguments if word not in {"--reward", "judge"}]
        assert execute((*kept, "--reward", f"{code}:label")) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)
        assert "called" in err


def test_a_quiet_command_says_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing.csv" in error_of(capsys, "--quiet", "train", "--queries", "missing.csv")


@pytest.fixture(scope="module")
def slow() -> Iterator[EmbeddedServer]:
    """A server that takes its time."""
    with EmbeddedServer(Settings(slots=2, time_scale=1.0)) as server:
        yield server


@pytest.mark.parametrize("command", [name for name, case in CASES.items() if case.long is not None])
def test_ctrl_c_is_one_line_and_its_code(
    command: str, files: Mapping[str, str], slow: EmbeddedServer, tmp_path: Path
) -> None:
    arguments = line(command, files, slow.host, tmp_path / "run", CASES[command].long or "")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*MUTAGYM, *arguments], text=True, **streams) as process:  # type: ignore[call-overload]  # noqa: S603 - our own words
        if command in {"proxy", "serve"}:
            process.stdout.readline()
        else:
            process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().splitlines()
    if command in {"proxy", "serve"}:  # they serve until then
        assert process.returncode == (0 if command == "serve" else 130)
        return
    assert process.returncode == 130
    assert said[-1] == "mutagym: stopped by SIGINT"
    if command in OWN_FOLDER and (tmp_path / "run" / "config.toml").exists():
        assert said[-2].startswith(
            f"to go on: mutagym {command} --resume {tmp_path / 'run'} --ollama-host "
        )


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


def test_a_signal_that_was_ignored_when_the_command_began_stays_ignored(
    files: Mapping[str, str], slow: EmbeddedServer, tmp_path: Path
) -> None:
    """As under nohup, and for a script's job in the background."""
    arguments = line("evolve", files, slow.host, tmp_path / "run")
    script = ["/bin/sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *MUTAGYM, *arguments]
    with subprocess.Popen(script, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own words
        assert process.stderr
        next(said for said in process.stderr if said.startswith("run folder"))
        for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(signum)
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1] == "mutagym: stopped by SIGTERM"


@pytest.mark.parametrize("redirected", ['"$@" >&-', '"$@" 2>&-', '"$@" <&- >&- 2>&-', '"$@"'])
def test_a_stream_that_is_closed_ends_nothing_and_a_stderr_that_breaks_neither(
    redirected: str, files: Mapping[str, str], simulator: EmbeddedServer, tmp_path: Path
) -> None:
    arguments = line("evolve", files, simulator.host, tmp_path / "run")
    with subprocess.Popen(  # noqa: S603 - our own words
        ["/bin/sh", "-c", redirected, "sh", *MUTAGYM, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr
        process.stderr.close()
    assert process.returncode == 0
    assert read(tmp_path / "run")["history"]


@pytest.mark.parametrize("command", ["--help", "evolve"])
def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word(
    command: str, files: Mapping[str, str], simulator: EmbeddedServer, tmp_path: Path
) -> None:
    run = line("evolve", files, simulator.host, tmp_path / "run", "--quiet")
    arguments = run if command == "evolve" else [command]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*MUTAGYM, *arguments], **streams) as process:  # type: ignore[call-overload]  # noqa: S603 - our own words
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


ERRORS = {
    "--ollama-host http://127.0.0.1:9": ["127.0.0.1:9", "ollama serve"],
    "--mutators paraphrse": ["paraphrse", "paraphrase"],
    "--lr fast": ["--lr", "fast"],
    "--lr -1": ["--lr", "> 0"],
    "--lr inf": ["--lr", "inf"],
    "--num-mini-batch 5": ["--num-mini-batch 5", "4 x 8 = 32", "4 or 8"],
    "--no-batching --schedule phased": ["--no-batching", "--schedule phased"],
    "--max-in-flight many": ["--max-in-flight", "'auto'", "'many'"],
    "--config=a.toml --config=b.toml": ["--config"],
    "--json missing/x.json": ["--json", "missing/x.json"],
    "--num-steps 4.5": ["--num-steps", "4.5"],
    "--seed 4294967296": ["--seed", "4294967296"],
    "--slots 0": ["--slots"],
    "--target-model llama3.2": ["ollama pull llama3.2"],
    "--encoder ollama:nope": ["ollama pull nope"],
}


@pytest.mark.parametrize("flags", ERRORS)
def test_what_a_user_can_mend_is_one_line_that_says_how(
    flags: str,
    files: Mapping[str, str],
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = {flag for flag in flags.replace("=", " ").split() if flag.startswith("--")}
    words = line("train", files, simulator.host, tmp_path / "run")
    pairs = zip(words[1::2], words[2::2], strict=True)
    rest = [word for flag, value in pairs if flag not in kept for word in (flag, value)]
    last = error_of(capsys, "train", *rest, *flags.split())
    assert all(word in last for word in ERRORS[flags]), last


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num-proceses = 4\n", ["num-proceses", "num-processes"]),
        ('lr = "fast"\n', ["lr", "fast"]),
        ("lr = = 1\n", ["not a TOML file", "line 1"]),
        ("no-batching = true\n", ["no-batching", "batching = false"]),
        ("[train]\nnum-steps = 4\n", ["[train]", "at the top"]),
    ],
)
def test_a_bad_key_or_value_of_the_config_file_is_one_line(
    text: str, says: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    last = error_of(capsys, "train", "--config", str(path))
    assert all(word in last for word in says), last


def test_what_is_missing_is_named(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, needed in (
        (("ask", "why?"), "--policy"),
        (("proxy",), "RUN"),
        (("judge",), "FILE"),
    ):
        assert f"{arguments[0]} needs {needed}: " in error_of(capsys, *arguments)
    assert "--policy requires an argument" in error_of(capsys, "ask", "--policy")
    assert "train" in error_of(capsys, "trian")
    without_model = error_of(capsys, "train", "--ollama-host", simulator.host)
    assert "--target-model" in without_model
    assert "sim-target" in without_model
    (tmp_path / "mine").write_text("x")
    assert "not empty" in error_of(capsys, "train", "--run-dir", str(tmp_path))
    assert "is not a folder" in error_of(capsys, "train", "--run-dir", str(tmp_path / "mine"))
    assert "--port" in error_of(capsys, "serve", "--port", simulator.host.rpartition(":")[2])


def test_serve_takes_ollamas_variables() -> None:
    environment = os.environ | {"OLLAMA_NUM_PARALLEL": "5"}
    command = [*MUTAGYM, "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603 - our own words
        assert process.stdout
        assert ": 5 slots a model" in process.stdout.readline()
        process.send_signal(signal.SIGINT)


def test_completion_is_installed_for_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert execute(("--install-completion", "--shell", "bash")) == 0
    (script,) = tmp_path.rglob("completions/mutagym")
    assert str(script) in capsys.readouterr().out
    assert all(
        word in script.read_text() for word in ("evolve", "--num-processes", "--population-size")
    )
