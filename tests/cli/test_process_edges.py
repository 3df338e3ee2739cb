"""How a command behaves at the edges of its process: streams, signals, terminals, files it is given."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.runs import read

MUTAGYM = (sys.executable, "-m", "cli.launch")
SMALL = (
    *("--target-model", "sim-solver", "--population-size", "6", "--max-generations", "1"),
    *("--panel-size", "5", "--rate-limit-per-minute", "0"),
)


@pytest.mark.parametrize("redirected", ['"$@" >&-', '"$@" 2>&-', '"$@" <&- >&- 2>&-', '"$@"'])
def test_a_stream_that_is_closed_ends_nothing_and_a_stderr_that_breaks_neither(
    redirected: str, simulator: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("evolve", *SMALL, "--ollama-host", simulator.host, "--run-dir", str(tmp_path / "run"))
    with subprocess.Popen(  # noqa: S603 - our own words
        ["/bin/sh", "-c", redirected, "sh", *MUTAGYM, *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr
        process.stderr.close()
    assert process.returncode == 0
    assert read(tmp_path / "run")["history"]


@pytest.mark.parametrize("shown", ["help", "results"])
def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word(
    shown: str, simulator: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("evolve", *SMALL, "--ollama-host", simulator.host, "--run-dir", str(tmp_path / "run"))
    arguments = ("--help",) if shown == "help" else ("--quiet", *flags)
    with subprocess.Popen(  # noqa: S603 - our own words
        [*MUTAGYM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


def test_a_signal_that_was_ignored_when_the_command_began_stays_ignored(tmp_path: Path) -> None:
    """As under nohup, and for a script's job in the background."""
    flags = ("evolve", "--ollama-host", "embedded", "--time-scale", "1", "--run-dir", str(tmp_path / "run"))
    script = ["/bin/sh", "-c", 'trap "" INT HUP; exec "$@"', "sh", *MUTAGYM, *flags]
    with subprocess.Popen(script, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own words
        assert process.stderr
        next(line for line in process.stderr if line.startswith("run folder"))
        for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(signum)
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1] == "mutagym: stopped by SIGTERM"


INTERRUPTED_IMPORT = """
import os, signal, sys
from cli import launch

class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)

assert not {"cyclopts", "numpy", "rich"} & set(sys.modules)
sys.meta_path.insert(0, CtrlC())
sys.argv = ["mutagym", "--help"]
launch.main()
"""


def test_ctrl_c_while_the_command_is_imported_is_one_line() -> None:
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mutagym: stopped by SIGINT\n")


@pytest.mark.parametrize(
    "variables",
    [{"COLUMNS": "0", "LINES": "0"}, {"COLUMNS": "wide"}, {"TERM": "dumb"}],
    ids=["none", "no number", "dumb"],
)
def test_a_terminal_of_any_size_and_kind_changes_the_picture_alone(
    variables: dict[str, str], simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """It is one of one column and one line."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 1, 1, 0, 0))
    flags = ("evolve", *SMALL, "--ollama-host", simulator.host, "--run-dir", str(tmp_path / "run"))
    with subprocess.Popen(  # noqa: S603 - our own words
        [*MUTAGYM, *flags],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"} | variables,
    ) as process:
        os.close(theirs)
        try:
            while os.read(ours, 65536):
                pass
        except OSError:  # Linux: nobody holds the other end any more
            os.close(ours)
    assert process.returncode == 0
    assert read(tmp_path / "run")["history"]


COMMANDS = {
    "train": ("--target-model", "sim-target", "--reward", "judge", "--judge-model", "sim-judge"),
    "eval": ("--target-model", "sim-target"),
    "evolve": ("--target-model", "sim-solver"),
    "select": ("--models", "sim-solver"),
    "optimize": ("--target-model", "sim-solver"),
    "ask": ("how do I whip cream?",),
    "judge": (),
    "rescore": (),
    "report": (),
}
FLAGS = (
    *(("train", flag) for flag in ("--judge-accuracy", "--config", "--queries", "--mutators")),
    ("train", "--judge-rubric"),
    *(("eval", flag) for flag in ("--judge-accuracy", "--guard-queries", "-m", "-p")),
    ("evolve", "--task"),
    *(("select", flag) for flag in ("--task", "--prompts", "--evaluate")),
    ("optimize", "--task"),
    ("ask", "--policy"),
    *((command, "") for command in ("judge", "rescore", "report")),
)
"""Each command with a flag that may name a file, or its argument."""
TEXTS = ("--judge-rubric", "--prompts")
"""Flags whose file may hold any text."""


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


@pytest.mark.parametrize(("command", "flag"), FLAGS)
def test_a_file_that_cannot_be_what_it_is_named_for_is_one_line(
    command: str,
    flag: str,
    odd_file: Path,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if flag in TEXTS and odd_file.is_file() and odd_file.read_bytes().startswith(b"["):
        return
    host = ("--ollama-host", simulator.host) if command not in {"judge", "rescore", "report"} else ()
    code = execute([command, *filter(None, [flag]), str(odd_file), *COMMANDS[command], *host])
    *_, line = capsys.readouterr().err.splitlines()
    assert (code, line[:9]) == (2, "mutagym: ")
    assert flag.strip("-") in line.split() or odd_file.name in line
