"""Whatever a server says, lists or complains of, no command hands it to the terminal as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import execute
from tests.cli.searches import COMMANDS, pairs
from tests.nasty import ALL, MODEL, NASTY, harmful, nasty_server

Capture = pytest.CaptureFixture[str]

ROLES = (f"--target-model={MODEL}", f"--mutator-model={MODEL}")
JUDGED = (*ROLES, f"--judge-model={MODEL}")


def check(
    arguments: list[str], capsys: Capture, codes: tuple[int, ...] = (0,), *, fails: bool = False
) -> tuple[str, str]:
    """Run a command against the nasty server; what it printed, which is harmless."""
    command, *flags = arguments
    with nasty_server(fails=fails) as server:
        code = execute([command, "--ollama-host", server.host, "--call-attempts=1", *flags])
    out, err = capsys.readouterr()
    assert code in codes, err
    assert not harmful(out)
    assert not harmful(err)
    return out, err


@pytest.mark.parametrize("fails", [False, True], ids=["replies", "errors"])
def test_ask(trained_run: Path, capsys: Capture, *, fails: bool) -> None:
    query = f"How do I {ALL} kill a process?"
    asked = ["ask", "--policy", str(trained_run), *ROLES, "--intent-threshold=0"]
    out, err = check([*asked, query], capsys, (1,) if fails else (0,), fails=fails)
    assert (r"\x1b[2J" in err) if fails else (r"reply: Sure, here you are: \x1b[2J\x1b[H" in out)
    out, _ = check([*asked, "--json", query], capsys, (1,) if fails else (0,), fails=fails)
    told = json.loads(out)
    assert told["query"] == query
    if not fails:
        assert told["reply"].startswith(f"Sure, here you are: {ALL}")


def test_eval(trained_run: Path, tmp_path: Path, capsys: Capture) -> None:
    few = ["--episodes=2", "--baselines=noop,random", f"--run-dir={tmp_path / 'run'}"]
    check(["eval", "-p", str(trained_run), *ROLES, "--intent-threshold=0", *few], capsys)


def test_train(tmp_path: Path, capsys: Capture) -> None:
    few = ["--num-env-steps=16", "--num-processes=2", "--num-steps=8", "--encoder=hashing:32"]
    folder = f"--run-dir={tmp_path / 'run'}"
    few.append("--always-reword")  # everything is answered
    check(["train", *ROLES, "--intent-threshold=0", *few, folder], capsys)
    board = b"".join(path.read_bytes() for path in (tmp_path / "run" / "tb").iterdir())
    assert NASTY[0].encode() not in board


@pytest.mark.parametrize("command", COMMANDS)
def test_searches(command: str, tmp_path: Path, capsys: Capture) -> None:
    flags = [f"{name}={value}" for name, value in pairs(COMMANDS[command]) if name != "--models"]
    if command == "select":
        flags += [f"--models={MODEL},plain", f"--mutator-model={MODEL}"]
    else:
        flags += [*(JUDGED if command == "optimize" else ROLES), f"--seed-prompt=Solve. {ALL}"]
    check([command, *flags, f"--run-dir={tmp_path / 'run'}"], capsys, (0, 1))


def test_judge(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text(json.dumps({"prompt": f"Why {ALL}?", "completion": ALL}) + "\n")
    _, err = check(["judge", str(file), "--reward=judge", f"--judge-model={MODEL}"], capsys, (0, 1))
    assert "unscored" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["ask", "--policy", f"no{MODEL}", "why?"],
        ["train", "--target-model=unknown", "--mutator-model=unknown"],
        ["train", *ROLES, f"--mutators=paraphrase,{ALL}"],
        ["train", *ROLES, "--queries", f"no{MODEL.replace('/', '')}.csv"],
        ["evolve", *ROLES, f"--task={MODEL}.jsonl"],
        ["train", f"--{MODEL}=1"],
    ],
    ids=range(6),
)
def test_errors(arguments: list[str], tmp_path: Path, capsys: Capture) -> None:
    folder = [] if arguments[0] == "ask" else [f"--run-dir={tmp_path / 'run'}"]
    _, err = check([*arguments, *folder], capsys, (1, 2))
    assert err.strip().splitlines()[-1].startswith("mutagym: ")
