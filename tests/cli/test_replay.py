"""A run is played again from its log of replies, bit for bit; else what differs is named."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
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
    names = ["weights in last.pt", "weights_sha256 of summary.json"]
    names = ["transitions_sha256", *names, "weights in policy.safetensors"]
    assert [which["what"] for which in found["compared"]] == names
    assert found["compared"][0]["replayed"] == summary(whole)["transitions_sha256"]
    assert f"equal, bit for bit; the replay is in {str(again)!r}" in capsys.readouterr().out
    same = ("env_steps", "llm_calls", "completion_tokens", "success_rate_end", "simulated")
    assert outcome(again, *same) == outcome(whole, *same)
    replay(again)


SHAPES = {
    "auto, with looks at kept queries": (
        *("--algorithm", "auto", "--bandit-env-steps", "32", "--num-env-steps", "64"),
        *("--kept", "0.2", "--queries", "few.txt", "--mutators", "paraphrase,noop"),
        *("--encoder", "hashing:16", "--max-steps", "2"),
    ),
    "a bandit, a judge, an encoder on the server, one call at a time": (
        *("--algorithm", "thompson", "--encoder", "ollama:sim-embed", "--reward", "judge"),
        *("--judge-model", "sim-judge", "--no-batching", "--num-env-steps", "32"),
    ),
    "models that think, for longer than usual": (
        *("--mutators", "noop,shorten", "--num-env-steps", "32", "--encoder", "hashing:16"),
        *("--reward", "judge", "--judge-model", "sim-thinker", "--think", "on"),
        *("--mutator-think", "on", "--judge-think", "low", "--think-budget", "999"),
    ),
}


@pytest.mark.parametrize("flags", SHAPES.values(), ids=SHAPES)
def test_runs_of_every_shape_are_replayed(
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    few = [f"How do I open a box of kind {kind}?" for kind in range(20)]
    Path("few.txt").write_text("\n".join(few))
    thinks = "--think" in flags
    world = ["sim-thinker" if thinks and each.startswith("sim-") else each for each in WORLD]
    assert train(simulator.host, tmp_path / "run", *world, *SHAPE, *flags) == 0
    replay(tmp_path / "run")


def test_seeds_are_replayed_and_those_without_a_whole_row_are_left_out(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    """One that has none was stopped before its first row, or had not begun."""
    run = tmp_path / "run"
    small = (*WORLD, *SHAPE, "--encoder", "hashing:16", "--num-env-steps", "32")
    assert train(simulator.host, run, *small, "--seeds", "3", "--seed", "3") == 0
    assert [each["seed"] for each in replay(run)] == [3, 4, 5]
    (run / "seed-4" / "summary.json").unlink()
    (run / "seed-4" / "transitions.jsonl").write_text('{"row"')
    shutil.rmtree(run / "seed-5")
    assert [each["seed"] for each in replay(run)] == [3]
    err = capsys.readouterr().err
    assert all(f"seed {seed} is left out: the run '{run}" in err for seed in (4, 5))
    shutil.rmtree(run / "seed-3")
    assert "no whole row of transitions" in last_line(capsys, 2, run)


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
        none = ("--call-attempts", "1", "--always-reword")
        assert train(simulator.host, tmp_path / "none", *SMALL, *none) == 1
    replay(tmp_path / "none")


def test_a_run_that_was_killed_is_replayed_as_far_as_its_whole_rows_go(copy: Path) -> None:
    """There is no summary; here no checkpoint either, as after a kill in the first rollout."""
    written = (copy / "transitions.jsonl").read_text().splitlines(keepends=True)
    (copy / "transitions.jsonl").write_text("".join(written[:46]) + written[46][:50])
    for name in ("summary.json", "policy.safetensors", "checkpoints/last.pt"):
        (copy / name).unlink()
    (found,) = replay(copy)
    assert found["steps"] == 44
    assert [which["what"] for which in found["compared"]] == ["transitions_sha256"]


def edit_log(folder: Path, statement: str, values: Sequence[object]) -> None:
    """Change the log of replies."""
    database = sqlite3.connect(folder / "replies.sqlite", isolation_level=None)
    database.execute(statement, values)
    database.close()


def test_the_first_line_whose_reply_is_another_or_missing_is_named(
    copy: Path, capsys: Capture
) -> None:
    text = lines(copy)[40]["reply"]
    first = next(k for k, line in enumerate(lines(copy), 1) if line["reply"] == text)
    like = (f"%{json.dumps(text, ensure_ascii=False)[1:-1]}%",)
    changed = "replace(reply, 'text\": \"', 'text\": \"So. ')"
    edit_log(copy, f"UPDATE replies SET reply = {changed} WHERE reply LIKE ?", like)  # noqa: S608
    line = last_line(capsys, 1, copy)
    assert f"line {first} of transitions.jsonl does not come out as it did: reply" in line
    edit_log(copy, "DELETE FROM replies WHERE reply LIKE ?", like)
    line = last_line(capsys, 1, copy)
    assert f"line {first} of transitions.jsonl cannot be played: " in line
    assert "NotInLogError: replies.sqlite has no reply to this call to model 'sim-target'" in line


def test_weights_that_were_changed_are_named(copy: Path, capsys: Capture) -> None:
    found = summary(copy)
    (copy / "summary.json").write_text(json.dumps(found | {"weights_sha256": "0" * 64}))
    weights = (copy / "policy.safetensors").read_bytes()
    (copy / "policy.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    line = last_line(capsys, 1, copy, "--json", copy.parent / "found.json")
    assert f"weights_sha256 of summary.json: the run has {'0' * 64}, the replay " in line
    assert line.endswith(found["weights_sha256"])
    (each,) = read(copy.parent, "found.json")["replays"]
    differing = [c["what"] for c in each["compared"] if c["recorded"] != c["replayed"]]
    assert differing == ["weights_sha256 of summary.json", "weights in policy.safetensors"]


def cut_lines(run: Path) -> None:
    path = run / "transitions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:40]) + '{"row"')


def test_what_cannot_be_replayed_is_the_users_error(
    whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    with (whole / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use by another process" in last_line(capsys, 2, whole)
    table: list[tuple[Callable[[Path], object], str]] = [
        (cut_lines, "has 40 whole lines, and summary.json counts 64"),
        (lambda run: (run / "replies.sqlite").unlink(), "without its replies"),
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
    code.write_text("def score(query, reply):\n    print('mine')\n    return 'refused'\n")
    own = ("--reward", f"{code}:score")
    few = ("--num-env-steps", "32", "--encoder", "hashing:16")
    assert train(simulator.host, run, *WORLD, *SHAPE, *own, *few) == 0
    line = last_line(capsys, 2, run)
    assert f"code (--reward {code}:score)" in line
    assert simulator.host not in line  # nobody is called, so no host is in question
    assert execute(("replay", str(run), *own, "--json", "-")) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["run"] == str(run)
    assert "mine" in err
    replay(run, "--trust-run")
