"""What a run saves is never worse than a fixed choice, as far as its kept queries show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from envs.observation import Memory, memory_of_look, observation
from envs.queries import Query
from simulator.process import EmbeddedServer
from tests.runs import (
    PASSES,
    WORLD,
    interrupted_at,
    lines,
    outcome,
    read,
    resume,
    summary,
    train,
)
from train.choice import Candidate, Choice, choice_of, fixed_policy
from train.policy import LearnedPolicy, load_policy, load_weights
from train.ppo import weights_sha256

SHAPE = ("--num-processes", "4", "--num-steps", "8", "--encoder", "hashing:64", *PASSES)
SHORT = (*WORLD, *SHAPE, "--max-steps", "2", "--num-env-steps", "192")
"""A run of six rollouts, which learns little."""
EMBEDDING = np.full(64, 0.125, np.float32)
BANDIT = (*SHORT[:-1], "256", "--algorithm", "linucb")


def choice(guard: Sequence[bool] | None = None, **returns: Sequence[float]) -> Choice:
    found = {name: np.array(each, np.float64) for name, each in returns.items()}
    count = len(next(iter(found.values())))
    return Choice(returns=found, is_guard=np.array(guard or [False] * count))


def test_the_simplest_within_one_standard_error_of_the_best_is_chosen() -> None:
    low, high = [0.0, 1.0] * 20, [0.0, 1.0] * 15 + [1.0] * 6 + [0.0] * 4
    assert choice(noop=low, cascade=low, learned=low).chosen == "noop"
    found = choice(noop=[0.0] * 40, cascade=low, learned=high)
    assert (found.best, found.chosen) == ("learned", "cascade")
    assert choice(noop=[0.0] * 40, cascade=low, learned=[0.5, 1.0] * 20).chosen == "learned"
    assert choice(cascade=[0.9] * 40, learned=[0.1] * 40).chosen == "cascade"


def test_a_failed_call_is_left_out_and_both_sides_count_alike() -> None:
    nan = float("nan")
    assert choice(noop=[0.0, nan, 0.0, 0.0], learned=[1.0, 0.0, nan, 1.0]).chosen == "learned"
    guard = [False] * 4 + [True] * 40
    found = choice(guard, noop=[0.0] * 44, learned=[0.9] * 4 + [-0.05] * 40)
    assert found.mean(found.returns["learned"]) == pytest.approx(0.85)
    assert found.chosen == "learned"


def test_a_call_that_failed_leaves_its_query_out_and_no_other() -> None:
    queries = [Query(text=str(row), group=str(row // 2), row=row + 1) for row in range(60)]
    learned = np.full(60, 0.9)
    learned[7] = np.nan
    both = {"noop": np.zeros(60), "learned": learned}
    found = choice_of(both, queries, is_guarded=False)
    assert found is not None
    assert found.chosen == "learned"
    assert np.isnan(found.returns["learned"]).sum() == 1
    assert len(found.is_guard) == 30
    assert choice_of(both, queries, is_guarded=True) is None  # none of the kept is a guard query
    few = {name: each[:18] for name, each in both.items()}
    assert choice_of(few, queries[:18], is_guarded=False) is None


def test_a_fixed_policy_plays_its_mutators_in_turn_and_then_leaves_it(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    assert train(simulator.host, tmp_path / "run", *SHORT, "--mutators", "noop,shorten,expand") == 0
    policy = load_policy(tmp_path / "run")
    space = load_weights(tmp_path / "run" / "policy.safetensors")
    made = fixed_policy(Candidate(name="cascade", order=(2, 1)), space.observation_space, 3, 0)
    always = Candidate(name="best fixed", order=(1,), repeats=True)
    best = fixed_policy(always, space.observation_space, 3, 0)
    assert isinstance(policy, LearnedPolicy)
    memory = memory_of_look(0, -0.05, "refused")
    played, fixed = [], []
    for step in range(3):
        seen = observation(EMBEDDING, 3, memory, step / 5)
        played.append(made.greedy(seen))
        fixed.append(best.greedy(seen))
        memory = memory.after(played[-1], -0.05, "refused", changed=step == 0)
    assert played == [2, 1, 0]
    assert fixed == [1, 1, 1]
    nothing = fixed_policy(Candidate(name="noop"), space.observation_space, 3, 0)
    assert nothing.greedy(observation(EMBEDDING, 3, Memory(), 0.0)) == 0


def test_a_run_saves_what_did_best_on_the_kept_queries_and_says_why(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, flags in (("ppo", SHORT), ("linucb", BANDIT)):
        run = tmp_path / name
        assert train(simulator.host, run, *flags) == 0
        found = summary(run)
        means = {each: of["mean"] for each, of in found["kept_returns"].items()}
        assert list(means) == ["noop", "best fixed", "cascade", "learned"]
        assert means[found["best_on_kept"]] == max(means.values())
        assert found["kept_returns"][found["saved"]]["behind"] <= max(
            0.0, found["kept_returns"][found["saved"]]["error"]
        )
        assert f"saved: {found['saved']} (" in capsys.readouterr().out
        saved = weights_sha256(load_weights(run / "policy.safetensors"))
        assert saved == found["policy_sha256"]
        is_fixed = found["saved"] != "learned"
        assert (saved != found["weights_sha256"]) == is_fixed
        assert (run / "learned.safetensors").exists() == is_fixed
        kept = set(read(run, "queries.json")["kept"])
        assert 10 <= found["kept_groups"] <= len(kept)
        assert kept.isdisjoint(line["original_query"] for line in lines(run))


def test_the_choice_depends_neither_on_the_schedule_nor_on_an_interruption(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    names = ("saved", "kept_returns", "policy_sha256", "weights_sha256", "env_steps")
    assert train(simulator.host, tmp_path / "lanes", *SHORT) == 0
    phased = tmp_path / "phased"
    interrupted_at(simulator.host, phased, 40, *SHORT, "--schedule", "phased")
    assert resume(phased) == 0
    assert outcome(phased, *names) == outcome(tmp_path / "lanes", *names)
    assert train(simulator.host, tmp_path / "none", *SHORT, "--kept", "0") == 0
    assert "saved" not in summary(tmp_path / "none")
