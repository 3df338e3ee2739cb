"""The policy of a training run: what it takes, sampled or not, here and in another process."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.observation import observation_size
from evaluation.instance import Instance
from evaluation.policies import PolicySource
from evaluation.specs import parse_policy, trained_source
from mutators.registry import DEFAULT_MUTATORS
from tests.evaluation.policies_for_tests import view
from train.policy import WEIGHTS, load_run, load_weights

SIZE = observation_size(384, len(DEFAULT_MUTATORS))


def source(path: Path, options: str = "") -> PolicySource:
    return trained_source(parse_policy(f"run={path}{options}"), load_run(path))


def act(policy: Instance, seen: NDArray[np.float32], step: int = 0) -> int:
    return policy.step(view(step_count=step, observation=seen, mutators=DEFAULT_MUTATORS))


def observations(count: int) -> NDArray[np.float32]:
    """Observations (count, SIZE) that the environment might give."""
    return np.random.default_rng(0).normal(size=(count, SIZE)).astype(np.float32)


def test_it_takes_what_sb3_calls_the_likeliest_whatever_its_seed_and_pickled_too(
    trained_run: Path,
) -> None:
    made = source(trained_run)
    sent = pickle.loads(pickle.dumps(made))  # noqa: S301 - just pickled
    one, other = (Instance(each, seed) for seed, each in enumerate((made, sent)))
    seen = observations(64)
    likeliest, _ = load_weights(trained_run / WEIGHTS).predict(seen, deterministic=True)
    assert len(set(likeliest)) > 1
    for policy in (one, other):
        assert [act(policy, row) for row in seen] == list(likeliest)
    assert one.network is other.network


def test_sampled_actions_depend_on_seed_and_step_and_come_as_often_as_they_are_likely(
    trained_run: Path,
) -> None:
    import torch

    made = source(trained_run, ",sample=true")
    (row,) = observations(1)
    with torch.no_grad():
        logits = made.make(0).network(torch.from_numpy(row[None])).numpy()[0]
    drawn = [made.make(seed).choose(logits, view()) for seed in range(2000)]
    expected = 2000 * np.exp(logits)
    counts = np.bincount(drawn, minlength=len(DEFAULT_MUTATORS))
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected) + 1).all()
    assert drawn[:40] == [act(Instance(made, seed), row) for seed in range(40)]
    assert len({act(Instance(made, 0), row, step) for step in range(40)}) > 1
