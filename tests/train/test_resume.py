"""A run that was ended anywhere and resumed is the run that was not; what cannot be resumed."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from ollama_utils.dispatcher import Dispatcher
from records.json_lines import JsonLines
from records.run_folder import RunFolder
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.content_filter import ANSWER, said, server_that
from tests.runs import (
    LASTING,
    PASSES,
    WORLD,
    at_line,
    before_call,
    faults,
    interrupted_at,
    lines,
    metrics,
    outcome,
    resume,
    send_signal,
    summary,
    train,
)
from tests.train.conftest import FAILING, SMALL, STEPS
from train.learner import Learner
from train.ppo import LanePPO

Capture = pytest.CaptureFixture[str]
KILLS = int(os.environ.get("MUTAGYM_KILLS", "1"))
SEED = ("--seed", "5")


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [line | {"not_hashed": None} for line in lines(folder)]


def break_down() -> None:
    raise ArithmeticError("broken")


Place = tuple[type, str, int]
PLACES: tuple[Place, ...] = (
    (JsonLines, "write", 14),
    (LanePPO, "update", 1),
    (Learner, "save", 2),
    (Dispatcher, "generate", 20),
)
"""What breaks down, in one process after another: the middle of a row, the update behind the first
rollout, the checkpoint behind that; a call of the second rollout."""


@pytest.mark.parametrize(("schedule", "places"), [("lanes", PLACES), ("sequential", PLACES[1:2])])
def test_a_run_that_breaks_down_again_and_again_comes_out_as_if_it_had_not(
    failing: EmbeddedServer, whole: Path, tmp_path: Path, schedule: str, places: tuple[Place, ...]
) -> None:
    run = tmp_path / "run"
    for owner, name, number in places:
        with before_call(owner, name, number, break_down):
            if (run / "config.toml").exists():
                assert resume(run) == 1
            else:
                assert train(failing.host, run, *FAILING, *SEED, "--schedule", schedule) == 1
        assert summary(run)["stopped"].startswith("ArithmeticError: broken (details: ")
        assert "break_down" in (run / "error.txt").read_text()
    assert resume(run) == 0
    assert outcome(run) == outcome(whole)
    assert without_times(run) == without_times(whole)
    assert metrics(run) == metrics(whole)


@pytest.mark.parametrize(
    ("schedule", "signum", "line"),
    [("lanes", signal.SIGINT, 1), ("phased", signal.SIGTERM, 33)],
)
def test_a_signal_ends_a_run_saved_with_a_line_that_goes_on(
    failing: EmbeddedServer,
    whole: Path,
    tmp_path: Path,
    capsys: Capture,
    schedule: str,
    signum: int,
    line: int,
) -> None:
    run = tmp_path / "run"
    with at_line(line, lambda: send_signal(signum)):
        code = train(failing.host, run, *FAILING, *SEED, "--schedule", schedule)
    assert code == 128 + signum
    *_, how, last = capsys.readouterr().err.strip().splitlines()
    assert last == f"mutagym: stopped by {signal.Signals(signum).name}"
    assert summary(run)["stopped"] == last.removeprefix("mutagym: ")
    assert (run / "policy.safetensors").exists()
    assert execute(how.removeprefix("to go on: mutagym ").split()) == 0
    assert summary(run)["stopped"] is None
    assert outcome(run) == outcome(whole)


@pytest.mark.parametrize(("schedule", "kept"), [("lanes", 4), ("lanes", 0), ("phased", 4)])
def test_after_ctrl_c_no_call_goes_out_and_those_under_way_are_answered_or_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str, kept: int
) -> None:
    if not kept:
        monkeypatch.setattr("train.run.LAST_CALLS_S", 0.2)
    interrupted, over, numbers = threading.Event(), threading.Event(), count()
    answered, waiting = 20, 4

    def answer(_text: str) -> tuple[int, Any]:
        number = next(numbers)  # 0 is the first question, before the run begins
        if number == answered + waiting:
            send_signal()
        if number > answered:
            (interrupted if kept else over).wait()
        return 200, said(ANSWER)

    run = tmp_path / "run"
    # In a rollout of 32 rows no lane has all its steps by then.
    shape = ("--num-processes", "4", "--num-steps", "32", "--num-env-steps", "128")
    flags = ("--target-model", "m", *shape, "--encoder", "hashing:64", "--mutators", "noop")
    more = ("--target-temperature", "1", "--slots", "8", "--schedule", schedule)
    stopped = before_call(Dispatcher, "drain", 1, interrupted.set)
    with server_that(answer) as server, stopped:
        assert train(server.host, run, *flags, *more) == 130
        for thread in threading.enumerate():
            if thread.name.startswith("lane-"):
                thread.join(20)
                assert not thread.is_alive()
        over.set()
        assert next(numbers) == 1 + answered + waiting
    with sqlite3.connect(run / "replies.sqlite") as log:
        (written,) = log.execute("SELECT count(*) FROM replies WHERE reply != ''").fetchone()
    log.close()
    assert written == 1 + answered + kept


def test_steps_that_are_on_record_as_unscored_stay_so_without_a_call(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """Also once the server is well; it is never asked again for a step that is on record."""
    run = tmp_path / "run"
    with faults(simulator, LASTING):
        interrupted_at(simulator.host, run, 60, *FAILING)
    before = lines(run)
    assert any(line["unscored"] for line in before[32:])
    calls = simulator.stats()["calls"]
    with at_line(61 - 32, send_signal):  # those since the checkpoint are written again
        assert resume(run) == 130
    assert simulator.stats()["calls"] - calls <= 4 * 2 + 2  # the next row, and the first questions
    assert resume(run) == 0
    assert without_times(run)[:60] == [line | {"not_hashed": None} for line in before]
    assert not any(line["unscored"] for line in lines(run)[60:])


def test_a_run_may_be_made_longer_and_one_that_is_complete_stays_as_it_is(
    simulator: EmbeddedServer, well: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(simulator.host, run, *SMALL, "--num-env-steps", "32") == 0
    for _ in range(2):
        assert resume(run, *STEPS) == 0
        spent = ("llm_calls", "completion_tokens", "env_steps")
        assert outcome(run, *spent) == outcome(well, *spent)
        assert metrics(run) == metrics(well)


def test_a_judge_an_encoder_on_the_server_and_a_warm_target_are_resumed_too(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    shape = ("--num-processes", "4", "--num-steps", "4", "--num-env-steps", "32")
    judged = ("--reward", "judge", "--judge-model", "sim-judge", "--target-temperature", "0.7")
    flags = (*WORLD, *PASSES, *shape, "--encoder", "ollama:sim-embed", *judged)
    assert train(simulator.host, tmp_path / "whole", *flags) == 0
    interrupted_at(simulator.host, tmp_path / "run", 20, *flags)
    assert resume(tmp_path / "run") == 0
    spent = ("llm_calls", "completion_tokens")
    assert outcome(tmp_path / "run", *spent) == outcome(tmp_path / "whole", *spent)
    asked = [line for line in lines(tmp_path / "run") if line["outcome"] != "stopped"]
    assert all("judge_score" in line["reward_parts"] for line in asked)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_a_full_disk_stops_a_run_which_goes_on_when_there_is_room_again(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    """No file may grow much beyond the checkpoint's size: the log of replies does not fit."""
    run, other = tmp_path / "run", tmp_path / "other"
    flags = (*SMALL, "--num-env-steps", "32", "--target-system", "Be kind and brief. " * 600)
    assert train(simulator.host, other, *flags) == 0
    room = (other / "checkpoints" / "last.pt").stat().st_size + 2000
    assert room < (other / "replies.sqlite").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        assert train(simulator.host, run, *flags) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("mutagym: ")
    assert last.endswith(": mend that, then go on")
    assert len(lines(run)) < 32
    assert resume(run) == 0
    assert outcome(run) == outcome(other)


@pytest.mark.slow
@pytest.mark.timeout(100 + 30 * KILLS)
def test_a_process_that_is_killed_again_and_again_loses_nothing(well: Path, tmp_path: Path) -> None:
    run, chance = tmp_path / "run", random.Random(7)
    with EmbeddedServer(Settings(slots=8, time_scale=0.1)) as server:
        host = ("--ollama-host", server.host)
        for kill in range(KILLS):
            begun = (run / "config.toml").exists()
            flags = ("--resume", str(run)) if begun else (*SMALL, *STEPS, "--run-dir", str(run))
            command = [sys.executable, "-m", "mutagym", "train", *host, *flags]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: S603 - our own
            least = (kill + 1) * 64 // (KILLS + 1)
            while process.poll() is None and number_of_lines(run) < least:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            process.wait()
        assert resume(run) == 0
        calls = server.stats()["calls"]
    assert outcome(run, "llm_calls") == outcome(well, "llm_calls")
    assert 0 <= calls - summary(run)["llm_calls"] <= 8 * KILLS  # what was under way at a kill


def number_of_lines(run: Path) -> int:
    path = run / "transitions.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


# --- what cannot be resumed ---------------------------------------------------

FEW = ("--num-processes", "2", "--num-steps", "4", "--num-env-steps", "16")
TINY = ("--target-model", "sim-target", *FEW, "--encoder", "hashing:16")
MUTATORS = """
from mutators.mutator import by_rule

@by_rule
def shout(query, earlier, seed):
    'Louder.'
    return query.upper()
"""


@pytest.fixture(scope="module")
def finished(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is complete, with code and queries of the user's own, named by relative paths."""
    folder = tmp_path_factory.mktemp("finished")
    texts = "".join(f"How do I fold paper crane number {k}?\n" for k in range(20))
    files = {"queries.txt": texts, "mine.py": MUTATORS, "reward.py": "def grade(q, r): return 0.25"}
    for name, text in files.items():
        (folder / name).write_text(text)
    own = ("--queries", "queries.txt", "--mutators", "noop,mine.py:shout")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train(simulator.host, Path("run"), *TINY, *own, "--reward", "reward.py:grade") == 0
    return folder / "run"


def refusal(capsys: Capture, *arguments: str) -> str:
    """The one line of what is refused."""
    capsys.readouterr()
    assert execute(("train", *arguments)) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("mutagym: ")]
    return line


def test_an_option_that_a_resumed_run_may_not_change(finished: Path, capsys: Capture) -> None:
    table: list[tuple[tuple[str, ...], str]] = [
        (("--lr", "0.5"), "--lr is 0.5"),
        (("--no-batching",), "--use-batching is False"),
        (("--mutators", "noop"), "--mutators is ['noop']"),
        (("--run-dir", "elsewhere"), "stays in its folder"),
        (("--num-env-steps", "8"), "16 steps are done"),
    ]
    for flags, words in table:
        assert words in refusal(capsys, "--resume", str(finished), "--trust-run", *flags)


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        (run / name).write_text((run / name).read_text().replace(old, new, 1))

    return change


SPOILT: list[tuple[Callable[[Path], object], str]] = [
    (edit("config.toml", "lr = ", "lr = ="), "is not a TOML file"),
    (edit("queries.json", "{", ""), "queries.json"),
    (edit("queries.json", "paper crane number 1?", "else?"), "'queries' is not what the"),
    (
        edit("parts.json", '"model sim-target": "', '"model sim-target": "0'),
        "'model sim-target' is",
    ),
    (edit("parts.json", 'mine.py": "', 'mine.py": "0'), "mine.py' is not what the run"),
    (edit("parts.json", 'reward.py": "', 'reward.py": "0'), "reward.py' is not what the run"),
    (lambda run: os.truncate(run / "transitions.jsonl", 999), "whole lines; expected at least 16"),
    (edit("transitions.jsonl", "crane", "swan"), "are not those"),
    (lambda run: os.truncate(run / "checkpoints" / "last.pt", 999), "last.pt' is damaged"),
    (lambda run: (run / "replies.sqlite").write_bytes(b"x" * 5000), "replies.sqlite' cannot be"),
]


def test_a_folder_that_lacks_something_or_was_changed(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    for row, (spoil, words) in enumerate(SPOILT):
        run = Path(shutil.copytree(finished, tmp_path / str(row)))
        spoil(run)
        assert words in refusal(capsys, "--resume", str(run), "--trust-run"), row


def test_one_process_at_a_time_writes_a_folder_and_one_run_is_in_it(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    with RunFolder(run, resume=True):
        line = refusal(capsys, "--resume", str(run), "--trust-run")
        assert "is in use by another process" in line
    assert resume(run) == 0
    assert "is not empty" in refusal(capsys, *TINY, "--run-dir", str(run))
