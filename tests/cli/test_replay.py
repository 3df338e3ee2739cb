"""A run is played again from its log of replies, bit for bit; else what differs is named."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.runs import (
    LASTING,
    PASSES,
    WORLD,
    faults,
    interrupted_at,
    lines,
    outcome,
    read,
    resume,
    summary,
    train,
)

Capture = pytest.CaptureFixture[str]
SHAPE = ("--num-processes", "4", "--num-steps", "8", *PASSES)
SMALL = (*WORLD, *SHAPE, "--encoder", "hashing:16", "--num-env-steps", "64")


@pytest.fixture(autouse=True)
def _no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that asked for a server would ask there, where none is."""
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def whole(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run from start to end."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(simulator.host, folder, *SMALL) == 0
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files below a folder: when they were written, and what they hold."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def replay(folder: Path, *flags: str) -> list[dict[str, Any]]:
    """What `--json` has of each run of a replay that is equal, and leaves the run as it was."""
    before, written = contents(folder), folder.parent / "replay.json"
    assert execute(("replay", str(folder), "--json", str(written), *flags)) == 0
    assert contents(folder) == before
    found = read(written.parent, written.name)
    assert found["equal"]
    replays: list[dict[str, Any]] = found["replays"]
    for each in replays:
        assert all(which["recorded"] == which["replayed"] for which in each["compared"])
    return replays


def last_line(capsys: Capture, code: int, *arguments: object) -> str:
    """The last line of a replay that ends with this exit code."""
    capsys.readouterr()
    assert execute(["replay", *map(str, arguments)]) == code
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_run_is_replayed_without_a_server_and_the_replay_is_a_run_like_it(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    asked, again = simulator.stats()["calls"], tmp_path / "again"
    (found,) = replay(whole, "--run-dir", str(again))
    assert simulator.stats()["calls"] == asked
    weights = (
        "weights in last.pt",
        "weights_sha256 of summary.json",
        "weights in policy.safetensors",
    )
    assert tuple(which["what"] for which in found["compared"]) == ("transitions_sha256", *weights)
    assert found["compared"][0]["replayed"] == summary(whole)["transitions_sha256"]
    assert f"equal, bit for bit; the replay is in {str(again)!r}" in capsys.readouterr().out
    same = ("env_steps", "llm_calls", "completion_tokens", "success_rate_end", "simulated")
    assert outcome(again, *same) == outcome(whole, *same)
    replay(again)


SHAPES = {
    "auto, with looks at kept queries": (
        *("--algorithm", "auto", "--bandit-env-steps", "32", "--num-env-steps", "64"),
        *("--kept", "0.2", "--queries", "few.txt", "--mutators", "paraphrase,noop"),
        *("--encoder", "hashing:16"),
    ),
    "a bandit, a judge, an encoder on the server, a warm target, one call at a time": (
        *("--algorithm", "thompson", "--encoder", "ollama:sim-embed", "--reward", "judge"),
        *("--judge-model", "sim-judge", "--target-temperature", "0.7", "--no-batching"),
        *("--num-env-steps", "48"),
    ),
    "several seeds": (*SMALL[len(WORLD) + len(SHAPE) :], "--seeds", "2", "--seed", "3"),
}


@pytest.mark.parametrize("flags", SHAPES.values(), ids=SHAPES)
def test_runs_of_every_shape_are_replayed(
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.txt").write_text(
        "".join(f"How do I open a box of kind {kind}?\n" for kind in range(20))
    )
    assert train(simulator.host, tmp_path / "run", *WORLD, *SHAPE, *flags) == 0
    replays = replay(tmp_path / "run")
    assert [each["seed"] for each in replays] == ([3, 4] if "--seeds" in flags else [0])


def test_a_run_with_failed_calls_is_replayed_stopped_resumed_or_given_up(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """Also where an equal call has its reply in the log."""
    run, often = tmp_path / "run", LASTING | {"rate": 0.25, "first": None}
    with faults(simulator, often):
        interrupted_at(simulator.host, run, 44, *SMALL, "--call-attempts", "1")
    (found,) = replay(run)
    assert found["unscored"] == sum(line["unscored"] for line in lines(run)) > 0
    assert resume(run) == 0
    (found,) = replay(run)
    assert (found["steps"], found["difference"]) == (64, None)
    with faults(simulator, {"kind": "status", "rate": 1.0}):
        assert train(simulator.host, tmp_path / "none", *SMALL, "--call-attempts", "1") == 1
    replay(tmp_path / "none")


@pytest.mark.parametrize("kept", [32, 44, 62])
def test_a_run_that_was_killed_is_replayed_as_far_as_its_whole_rows_go(
    copy: Path, kept: int
) -> None:
    """There is no summary; here no checkpoint either, as after a kill in the first rollout."""
    written = (copy / "transitions.jsonl").read_text().splitlines(keepends=True)
    (copy / "transitions.jsonl").write_text("".join(written[:kept]) + written[kept][:50])
    for name in ("summary.json", "policy.safetensors", "checkpoints/last.pt"):
        (copy / name).unlink()
    (found,) = replay(copy)
    assert found["steps"] == kept // 4 * 4
    assert [which["what"] for which in found["compared"]] == ["transitions_sha256"]


def test_a_run_on_a_server_that_never_answers_alike_is_replayed(tmp_path: Path) -> None:
    """Each reply holds the number of the call: an equal call would get another one."""
    numbers = count()

    def answers(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}
        number = next(numbers)
        if "input" in body:
            rows = [[1.0, 1 / len(text), 1 / (number + 1)] for text in body["input"]]
            return 200, {"model": "m", "embeddings": rows}
        text = "I'm sorry, but I can't help with that."
        if number % 3:
            text = f"Here is how it goes, number {number}: first open it, then read it."
        message = {"role": "assistant", "content": text}
        return 200, SAID | ({"message": message} if "messages" in body else {"response": text})

    small = ("--encoder", "ollama:m", "--num-env-steps", "64", "--intent-threshold", "0.1")
    flags = ("--target-model", "m", *SHAPE, *small)
    with ScriptedServer(answers) as server:
        assert train(server.host, tmp_path / "run", *flags) == 0
        assert train(server.host, tmp_path / "other", *flags) == 0
    assert outcome(tmp_path / "run") != outcome(tmp_path / "other")
    replay(tmp_path / "run")


def edit_log(folder: Path, statement: str, values: Sequence[object]) -> None:
    """Change the log of replies."""
    database = sqlite3.connect(folder / "replies.sqlite", isolation_level=None)
    database.execute(statement, values)
    database.close()


def test_the_first_line_whose_reply_is_another_or_missing_is_named(
    copy: Path, capsys: Capture
) -> None:
    steps = lines(copy)
    text = steps[40]["reply"]
    first = next(k for k, line in enumerate(steps, 1) if line["reply"] == text)
    like = (f"%{json.dumps(text, ensure_ascii=False)[1:-1]}%",)
    changed = "replace(reply, 'text\": \"', 'text\": \"So. ')"
    edit_log(copy, f"UPDATE replies SET reply = {changed} WHERE reply LIKE ?", like)  # noqa: S608
    line = last_line(capsys, 1, copy)
    assert f"line {first} of transitions.jsonl does not come out as it did: reply" in line
    edit_log(copy, "DELETE FROM replies WHERE reply LIKE ?", like)
    line = last_line(capsys, 1, copy)
    assert f"line {first} of transitions.jsonl cannot be played: " in line
    assert "NotInLogError: replies.sqlite has no reply to this call to model 'sim-target'" in line


def test_weights_and_lines_that_were_changed_are_named(copy: Path, capsys: Capture) -> None:
    found = summary(copy)
    (copy / "summary.json").write_text(json.dumps(found | {"weights_sha256": "0" * 64}))
    line = last_line(capsys, 1, copy)
    assert f"weights_sha256 of summary.json: the run has {'0' * 64}, the replay " in line
    assert line.endswith(found["weights_sha256"])
    (copy / "summary.json").write_text(json.dumps(found))
    weights = (copy / "policy.safetensors").read_bytes()
    (copy / "policy.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert "weights in policy.safetensors: the run has " in last_line(capsys, 1, copy)
    steps = lines(copy)
    steps[50]["reward"] += 0.5
    (copy / "transitions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    line = last_line(capsys, 1, copy)
    assert "line 51 of transitions.jsonl does not come out as it did: reward changed" in line


def cut_lines(run: Path) -> None:
    path = run / "transitions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:40]) + '{"row"')


def test_what_cannot_be_replayed_is_the_users_error(
    whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    before = contents(whole)
    for flag, name in (("--run-dir", "again"), ("--json", "summary.json")):
        line = last_line(capsys, 2, whole, flag, whole / name)
        assert f"{flag} names {str(whole / name)!r}, in the folder of the run" in line
    assert "not empty" in last_line(capsys, 2, whole, "--run-dir", whole)
    assert contents(whole) == before
    with (whole / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use by another process" in last_line(capsys, 2, whole)
    table: list[tuple[Callable[[Path], object], str]] = [
        (cut_lines, "has 40 whole lines, and summary.json counts 64"),
        (lambda run: (run / "replies.sqlite").unlink(), "without its replies"),
        (lambda run: (run / "transitions.jsonl").write_text(""), "no whole row of transitions"),
        (lambda run: (run / "config.toml").write_text('selector = "grid"\n'), "`mutagym train`"),
    ]
    for row, (spoil, words) in enumerate(table):
        run = Path(shutil.copytree(whole, tmp_path / str(row)))
        spoil(run)
        assert words in last_line(capsys, 2, run)


def test_code_of_ones_own_is_named_again_and_what_it_prints_is_no_part_of_the_json(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    run, code = tmp_path / "run", tmp_path / "mine.py"
    code.write_text("def score(query, reply):\n    print('mine')\n    return 'answered'\n")
    own = ("--reward", f"{code}:score")
    few = ("--num-env-steps", "32", "--encoder", "hashing:16")
    assert train(simulator.host, run, *WORLD, *SHAPE, *own, *few) == 0
    line = last_line(capsys, 2, run)
    assert f"code (--reward {code}:score)" in line
    assert simulator.host not in line  # nobody is called, so no host is in question
    replay(run, "--trust-run", "--run-dir", str(tmp_path / "again"))
    assert simulator.host not in (tmp_path / "again" / "config.toml").read_text()
    capsys.readouterr()
    assert execute(("replay", str(run), *own, "--json", "-")) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["run"] == str(run)
    assert "mine" in err
