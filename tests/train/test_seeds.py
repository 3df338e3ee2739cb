"""Several seeds side by side: each comes out as it does alone, and what ends one ends all, saved."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import ScriptedServer
from tests.runs import PASSES, WORLD, lines, metrics, resume, summary, train
from tests.train.test_stops import answers

LANES, STEPS, ALL = 4, 8, 96
SHAPE = ("--num-processes", str(LANES), "--num-steps", str(STEPS), "--num-env-steps", str(ALL))
AUDIT = ("--audit-judge", "sim-judge", "--audit-sample", "4")
SMALL = (*WORLD, *PASSES, *SHAPE, *AUDIT, "--encoder", "hashing:16")
SEEDS = (5, 6, 7)
SAME = ("transitions_sha256", "weights_sha256", "env_steps", "success_rate_end", "completion_tokens")


def folder_of(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


@contextmanager
def interrupted_once(folder: Path, written: int, then: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Within `with`: Ctrl-C comes after `then` once the seeds together have written so many transitions."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.001):
            if sum(path.read_bytes().count(b"\n") for path in folder.glob("*/transitions.jsonl")) >= written:
                then()
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@pytest.fixture(scope="module")
def alone(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the seeds, one after another."""
    folder = tmp_path_factory.mktemp("alone")
    for seed in SEEDS:
        assert train(simulator.host, folder_of(folder, seed), *SMALL, "--seed", str(seed)) == 0
    return folder


@pytest.fixture(scope="module")
def together(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the seeds, side by side."""
    folder = tmp_path_factory.mktemp("together") / "run"
    assert train(simulator.host, folder, *SMALL, "--seed", "5", "--seeds", "3") == 0
    return folder


def same(folder: Path, alone: Path) -> None:
    """Check that every seed's run is what it is alone."""
    for seed in SEEDS:
        found, wanted = (summary(folder_of(each, seed)) for each in (folder, alone))
        assert {name: found[name] for name in SAME} == {name: wanted[name] for name in SAME}
        assert found["stopped"] is None


def test_each_seed_side_by_side_is_the_run_that_it_is_alone(together: Path, alone: Path) -> None:
    same(together, alone)
    for seed in SEEDS:
        assert metrics(folder_of(together, seed)) == metrics(folder_of(alone, seed))
        config = (folder_of(together, seed) / "config.toml").read_text()
        assert config == (folder_of(alone, seed) / "config.toml").read_text()
    assert len({summary(folder_of(together, seed))["weights_sha256"] for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("algorithm", ["auto", pytest.param("thompson", marks=pytest.mark.soak)])
def test_so_it_is_with_every_algorithm(simulator: EmbeddedServer, tmp_path: Path, algorithm: str) -> None:
    """`auto` makes and fits networks in the middle of a run, while other seeds draw."""
    flags = (*SMALL, "--algorithm", algorithm, "--bandit-env-steps", "32")
    assert train(simulator.host, tmp_path / "run", *flags, "--seed", "5", "--seeds", "2") == 0
    for seed in (5, 6):
        alone = tmp_path / str(seed)
        assert train(simulator.host, alone, *flags, "--seed", str(seed)) == 0
        found, wanted = (summary(each) for each in (folder_of(tmp_path / "run", seed), alone))
        assert {name: found[name] for name in SAME} == {name: wanted[name] for name in SAME}


def test_the_summary_tells_of_each_seed_and_of_all(together: Path) -> None:
    found = summary(together)
    runs = [summary(folder_of(together, seed)) for seed in SEEDS]
    assert found["runs"] == runs
    assert found["seeds"] == list(SEEDS)
    for name in ("env_steps", "llm_calls", "completion_tokens"):
        assert found[name] == sum(run[name] for run in runs)
    rates = [run["success_rate_end"] for run in runs]
    low, high = found["success_interval_end"]
    assert found["success_rate_end"] == pytest.approx(sum(rates) / 3, abs=1e-4)
    assert 0 <= low <= min(rates) <= max(rates) <= high <= 1


def test_a_reply_is_paid_for_once_and_stands_in_the_log_of_each_seed_that_used_it(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """Without chance in the calls all seeds ask the same of a judge and of a target at temperature 0."""
    before = simulator.stats()["calls"]
    flags = ("--mutators", "noop", "--reward", "judge", "--judge-model", "sim-judge")
    assert train(simulator.host, tmp_path / "run", *SMALL, *flags, "--seed", "5", "--seeds", "2") == 0
    found = summary(tmp_path / "run")
    assert found["llm_calls"] == sum(run["llm_calls"] for run in found["runs"])
    assert simulator.stats()["calls"] - before == found["llm_calls"]
    for seed in (5, 6):
        path = folder_of(tmp_path / "run", seed)
        calls = summary(path)["llm_calls"]
        assert resume(path, "--num-env-steps", str(ALL)) == 0
        assert summary(path)["llm_calls"] == calls


@pytest.mark.parametrize("written", [1, 100])
def test_ctrl_c_ends_all_saved_and_all_go_on(
    simulator: EmbeddedServer, tmp_path: Path, alone: Path, written: int
) -> None:
    """Those that have not begun are begun then."""
    folder = tmp_path / "run"
    with interrupted_once(folder, written):
        assert train(simulator.host, folder, *SMALL, "--seed", "5", "--seeds", "3") == 130
    assert summary(folder)["stopped"] == "stopped by SIGINT"
    begun = {s for s in SEEDS if (folder_of(folder, s) / "transitions.jsonl").stat().st_size}
    assert begun <= set(summary(folder)["seeds"])
    assert all((folder_of(folder, s) / "policy.safetensors").exists() for s in summary(folder)["seeds"])
    assert resume(folder) == 0
    assert summary(folder)["stopped"] is None
    same(folder, alone)
    for seed in SEEDS:
        calls = [summary(folder_of(each, seed))["llm_calls"] for each in (folder, alone)]
        assert calls[0] == calls[1]


@pytest.mark.parametrize("written", [36, pytest.param(48, marks=pytest.mark.soak)])
def test_a_look_whose_calls_were_cancelled_is_made_again(
    simulator: EmbeddedServer, tmp_path: Path, written: int
) -> None:
    """The first seed looks at its policy while the second plays its first rollout."""
    folder, flags = tmp_path / "run", (*SMALL, "--kept", "0.1", "--mutators", "noop,shorten,add_context")
    with interrupted_once(folder, written):
        assert train(simulator.host, folder, *flags, "--seed", "5", "--seeds", "2") == 130
    assert resume(folder) == 0
    for seed in (5, 6):
        assert train(simulator.host, tmp_path / str(seed), *flags, "--seed", str(seed)) == 0
        found, wanted = (summary(each) for each in (folder_of(folder, seed), tmp_path / str(seed)))
        assert found["gain_looks"] == wanted["gain_looks"]
        assert found["weights_sha256"] == wanted["weights_sha256"]


def test_one_seed_goes_on_alone(simulator: EmbeddedServer, tmp_path: Path, alone: Path) -> None:
    folder = tmp_path / "run"
    with interrupted_once(folder, 100):
        assert train(simulator.host, folder, *SMALL, "--seed", "5", "--seeds", "3") == 130
    assert resume(folder_of(folder, 6)) == 0
    assert resume(folder) == 0
    same(folder, alone)


def test_a_seed_that_cannot_go_on_ends_all_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = count()

    def fails(body: dict[str, Any]) -> tuple[int, object]:
        if "input" in body or "model" not in body or next(asked) < 60:
            return answers(body)
        return 500, {"error": "out of memory"}

    shape = ("--encoder", "hashing:16", "--num-processes", "4", "--num-steps", "16", "--mutators", "noop")
    flags = (*shape, "--call-attempts", "1")
    with ScriptedServer(fails) as server:
        folder = ("--run-dir", str(tmp_path / "run"))
        told = ("--ollama-host", server.host, "--target-model", "m")
        assert execute(("train", *told, *flags, *folder, "--seeds", "2")) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    found = summary(tmp_path / "run")
    assert line == f"mutagym: {found['stopped']}"
    assert "could not be scored" in line
    whys = [run["stopped"] for run in found["runs"]]
    assert found["stopped"] in whys
    assert sum(why.startswith("stopped with seed") for why in whys) <= 1
    assert all("could not be scored" in why for why in whys)
    assert all((tmp_path / "run" / f"seed-{k}" / "policy.safetensors").exists() for k in (0, 1))


def test_a_failure_that_follows_is_told_and_hides_nothing(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends all; one of them cannot save its policy then."""
    folder = tmp_path / "run"
    in_the_way = folder_of(folder, 6) / "policy.safetensors"

    with interrupted_once(folder, 60, then=in_the_way.mkdir):
        assert train(simulator.host, folder, *SMALL, "--seed", "5", "--seeds", "2") == 130
    assert "seed 6 was not summed up: " in capsys.readouterr().err
    assert summary(folder)["seeds"] == [5]
    assert summary(folder)["stopped"] == "stopped by SIGINT"
    in_the_way.rmdir()
    assert resume(folder) == 0
    assert summary(folder)["seeds"] == [5, 6]


def test_each_seed_tells_its_looks_and_its_gain(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (*SMALL, "--kept", "0.1", "--mutators", "noop,shorten", "--seed", "5", "--seeds", "2")
    assert train(simulator.host, tmp_path / "run", *flags) == 0
    said = capsys.readouterr()
    for seed in (5, 6):
        assert f"seed {seed}: look at step 32: gain" in said.err
        assert f"seed {seed}: gain at step {ALL}:" in said.out


def test_what_cannot_stand_beside_several_seeds(
    simulator: EmbeddedServer, together: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ("train", "--ollama-host", simulator.host, *WORLD)
    for arguments, said in (
        ((*server, "--seeds", "1"), "--seeds"),
        ((*server, "--seeds", "3", "--no-batching"), "one after another"),
        ((*server, "--seeds", "3", "--seed", str(2**32 - 2)), "lower it"),
        (
            ("train", "--resume", str(together), "--trust-run", "--seeds", "4"),
            "--seeds is 4, but the run began with 3",
        ),
    ):
        assert execute(arguments) == 2
        assert said in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_run_of_one_seed_says_nothing_of_several(alone: Path, together: Path) -> None:
    assert "seeds" not in (folder_of(alone, 5) / "config.toml").read_text()
    assert "seeds = 3" in (together / "config.toml").read_text()
    assert not lines(folder_of(together, 5))[0]["unscored"]
