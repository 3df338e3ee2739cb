"""What is claimed of a policy's gain holds, however often one looks; `--until-sure`, `--kept`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import ScriptedServer
from tests.runs import (
    PASSES,
    WORLD,
    at_line,
    interrupted_at,
    lines,
    metrics,
    outcome,
    read,
    resume,
    send_signal,
    summary,
    train,
)
from tests.train.conftest import answers
from train.config import GainConfig
from train.gain import HOPELESS, SURE, GainRecord, share_of_look
from train.policy import load_run

UNKNOWN = float("nan")


def looked(policies: Sequence[Any], fixed: Mapping[str, Any]) -> GainRecord:
    """What is known after a look at each policy, 512 steps apart, or until it is enough."""
    found = GainRecord(list(map(str, range(len(policies[0])))), GainConfig(until_sure=True))
    found.fixed = {name: np.array(results) for name, results in fixed.items()}
    for number, policy in enumerate(policies, 1):
        left = 512 * (len(policies) - number)
        found.add(np.array(policy, np.float64), steps=512 * number, kept_steps=1, steps_left=left)
        if found.end:
            break
    return found


def test_a_large_gain_is_found_and_its_interval_holds() -> None:
    """How often one is claimed where there is none, benchmarks/coverage.py measures."""
    for seed in range(8):
        chance = np.random.default_rng([seed, 3])
        policy, *fixed = [chance.random(200) < rate for rate in (0.9, 0.5, 0.4)]
        found = looked([policy], dict(zip("ab", fixed, strict=True)))
        mean, low, high = found.looks[-1].gain
        assert found.end == SURE
        assert 0 < low < 0.4 < high
        assert low <= mean <= high


def test_the_chances_of_an_error_at_all_looks_add_up() -> None:
    assert sum(share_of_look(number) for number in range(1, 60)) == pytest.approx(1)


def test_a_query_that_stands_in_the_file_many_times_counts_once() -> None:
    policy, fixed = [1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]
    alone = looked([policy], {"a": fixed}).looks[-1].gain
    found = GainRecord(["w", "x", "y", "z"] * 50, GainConfig())
    found.fixed = {"a": np.array(fixed * 50)}
    look = found.add(np.array(policy * 50), steps=512, kept_steps=1, steps_left=0)
    assert look.gain == pytest.approx(alone)


@pytest.mark.parametrize(("policy", "fixed"), [(UNKNOWN, 0.0), (1.0, UNKNOWN)])
def test_calls_that_failed_count_for_neither_side(policy: float, fixed: float) -> None:
    gain = looked([[policy] * 100], {"a": [fixed] * 100}).looks[-1].gain
    assert gain.low <= 0
    assert gain.high == pytest.approx(1, abs=0.01)


def test_the_slope_is_the_growth_by_a_thousand_steps() -> None:
    order = np.random.default_rng(4).permutation(100)
    found = looked([order < 40, order < 80], {"a": np.ones(100)})
    slope = found.looks[-1].slope
    assert found.looks[0].slope is None
    assert slope is not None
    assert slope.mean == pytest.approx(0.4 / 512 * 1000)
    assert 0 < slope.low < slope.mean < slope.high


def test_a_run_that_cannot_come_far_ends_by_a_forecast_but_not_at_its_first_look() -> None:
    poor, good = [0.0] * 400, [1.0] * 200 + [0.0] * 200
    assert looked([poor], {"a": good}).end == ""
    found = looked([poor, poor, poor], {"a": good})
    assert (found.end, len(found.looks)) == (HOPELESS, 2)
    for total, end in ((3 * 512, HOPELESS), (10**6, "")):  # more steps may bring more
        resumed = GainRecord(list(map(str, range(400))), GainConfig(until_sure=True))
        resumed.restore(found.state(), total)
        assert resumed.end == end


SHAPE = ("--num-processes", "4", "--num-steps", "8", "--encoder", "hashing:16", *PASSES)
SMALL = (*WORLD, *SHAPE, "--num-env-steps", "160", "--max-steps", "2")
"""Five rollouts of 32: looks after 1, 2 and 4 of them, and at the end."""
THREE = ("--mutators", "noop,shorten,add_context")
KEPT = ("--kept", "0.025")


def results(run: Path) -> dict[str, Any]:
    names = ("gain", "gain_interval", "gain_looks", "kept_steps", "until_sure", "env_steps")
    return outcome(run, *names)


@pytest.fixture(scope="module")
def with_looks(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that looks, and goes on to its end."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    assert train(simulator.host, folder, *SMALL, *THREE, *KEPT) == 0
    return folder


def test_a_run_reports_what_it_gained_at_each_look(with_looks: Path) -> None:
    found = summary(with_looks)
    assert [look["env_steps"] for look in found["gain_looks"]] == [32, 64, 128, 160]
    assert found["gain_over"] in {"noop", "shorten", "add_context"}
    assert found["kept_queries"] == len(read(with_looks, "queries.json")["kept"])
    assert found["kept_steps"] >= 7 * found["kept_queries"]
    assert found["until_sure"] is None
    looks = [line for line in metrics(with_looks) if "gain/gain" in line]
    assert [line["step"] for line in looks] == [32, 64, 128, 160]


def test_kept_queries_are_of_the_training_side_and_change_nothing_of_what_is_learned(
    simulator: EmbeddedServer, with_looks: Path, tmp_path: Path
) -> None:
    """A run on the others alone, that never looks, has the same steps and weights.

    They decide when to stop, so an evaluation must not have them either.
    """
    split = read(with_looks, "queries.json")
    assert not set(split["kept"]) & {*split["train"], *split["held_out"]}
    assert {line["original_query"] for line in lines(with_looks)} <= set(split["train"])
    assert set(load_run(with_looks).train_queries) == {*split["train"], *split["kept"]}
    texts = tmp_path / "train.txt"
    texts.write_text("\n".join(split["train"]))
    flags = (*SMALL, *THREE, "--queries", str(texts), "--held-out", "0", "--kept", "0")
    assert train(simulator.host, tmp_path / "run", *flags) == 0
    assert outcome(tmp_path / "run") == outcome(with_looks)
    assert "gain" not in summary(tmp_path / "run")


def test_looks_depend_neither_on_the_schedule_nor_on_an_interruption(
    simulator: EmbeddedServer, with_looks: Path, tmp_path: Path
) -> None:
    flags = (*SMALL, *THREE, *KEPT, "--schedule", "phased")
    interrupted_at(simulator.host, tmp_path / "run", 40, *flags)
    with at_line(70, send_signal):
        assert resume(tmp_path / "run") == 130
    assert resume(tmp_path / "run") == 0
    assert results(tmp_path / "run") == results(with_looks)
    assert metrics(tmp_path / "run") == metrics(with_looks)


def test_a_run_that_is_settled_ends_early_and_stays_ended(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one mutator no policy gains anything, and that is plain once there is a slope."""
    run, alone = tmp_path / "run", ("--until-sure", "--kept", "0.25", "--least-gain", "0.7")
    assert train(simulator.host, run, *SMALL, "--mutators", "noop", *alone) == 0
    ended = results(run)
    assert str(summary(run)["until_sure"]).startswith("forecast")
    assert (summary(run)["env_steps"], summary(run)["stopped"]) == (64, None)
    assert "ended by --until-sure: forecast" in capsys.readouterr().out
    assert resume(run) == 0
    assert results(run) == ended
    assert "no step is added: --until-sure has ended this run (forecast" in capsys.readouterr().err


def test_too_many_calls_that_failed_are_no_run_that_is_settled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"

    def fails(body: dict[str, Any]) -> tuple[int, object]:
        kept = read(run, "queries.json")["kept"] if (run / "queries.json").exists() else []
        is_well = "prompt" not in body or not kept or body["prompt"] in kept
        return answers(body) if is_well else (500, {"error": "out of memory"})

    flags = ("--target-model", "m", *SHAPE, "--num-env-steps", "160", "--max-steps", "2")
    more = ("--mutators", "noop", "--call-attempts", "1", "--kept", "0.25", "--least-gain", "0.7")
    with ScriptedServer(fails) as server:
        assert train(server.host, run, *flags, *more, "--until-sure", "--always-reword") == 1
    assert "100% of the last 64 steps could not be scored" in capsys.readouterr().err
    assert str(summary(run)["until_sure"]).startswith("forecast")


def test_too_many_calls_that_fail_at_a_look_stop_the_run_which_makes_it_when_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, is_broken = tmp_path / "run", [True]

    def fails(body: dict[str, Any]) -> tuple[int, object]:
        kept = read(run, "queries.json")["kept"] if (run / "queries.json").exists() else []
        if is_broken[0] and body.get("prompt") in kept:
            return 500, {"error": "out of memory"}
        return answers(body)

    flags = ("--target-model", "m", *SHAPE, "--num-env-steps", "32", "--max-steps", "1")
    more = ("--mutators", "noop", "--kept", "0.03", "--call-attempts", "1")
    with ScriptedServer(fails) as server:
        assert train(server.host, run, *flags, *more) == 1
        assert "kept queries could not be scored" in capsys.readouterr().err.splitlines()[-1]
        assert summary(run)["gain_looks"] == []
        is_broken[0] = False
        assert resume(run) == 0
    assert [look["env_steps"] for look in summary(run)["gain_looks"]] == [32]
