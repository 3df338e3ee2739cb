"""`--algorithm`: each is the same run whoever waits for whom, resumed or not, and is used as PPO's is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from evaluation.policies.specs import PolicySpec
from evaluation.policies.trained import run_source
from records.errors import UserError
from simulator.process import EmbeddedServer
from tests.runs import PASSES, WORLD, interrupted_at, lines, resume, summary, train
from train.actor_critic import QueryPolicy
from train.bandit import BanditPolicy, MaskedBandit
from train.config import TrainConfig
from train.linear_bandit import PARTIAL_CREDIT
from train.policy_file import load_weights
from train.trained_run import load_run

LANES = 4
SHAPE = (
    "--num-processes",
    str(LANES),
    "--num-steps",
    "8",
    "--encoder",
    "hashing:16",
    "--bandit-env-steps",
    "32",
)
HASHES = ("env_steps", "transitions_sha256", "weights_sha256", "llm_calls")


def flags(algorithm: str, steps: int, *more: str) -> tuple[str, ...]:
    return (*WORLD, *SHAPE, *PASSES, "--algorithm", algorithm, "--num-env-steps", str(steps), *more)


def outcome(folder: Path) -> list[object]:
    return [summary(folder)[name] for name in HASHES]


@pytest.mark.parametrize("algorithm", ["linucb", "thompson", "auto"])
def test_a_schedule_changes_nothing(simulator: EmbeddedServer, tmp_path: Path, algorithm: str) -> None:
    for schedule in ("sequential", "lanes"):
        assert train(simulator.host, tmp_path / schedule, *flags(algorithm, 96, "--schedule", schedule)) == 0
    assert outcome(tmp_path / "lanes") == outcome(tmp_path / "sequential")
    assert outcome(tmp_path / "lanes")[0] == 96


@pytest.mark.parametrize(
    ("algorithm", "written"), [("linucb", 22), ("thompson", 22), ("auto", 22), ("auto", 50)]
)
def test_a_run_that_is_interrupted_and_resumed_is_the_run_that_was_not(
    simulator: EmbeddedServer, tmp_path: Path, algorithm: str, written: int
) -> None:
    assert train(simulator.host, tmp_path / "whole", *flags(algorithm, 96)) == 0
    interrupted_at(simulator.host, tmp_path / "run", written, *flags(algorithm, 96))
    assert summary(tmp_path / "run")["stopped"] == "stopped by SIGINT"
    assert resume(tmp_path / "run") == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_more_mutators_than_a_bandit_can_tell_apart_are_a_clear_error(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = ",".join(f"llm:reword {number}" for number in range(65))
    assert train(simulator.host, tmp_path / "run", *flags("linucb", 16, "--mutators", many)) == 2
    assert "at most 64 --mutators, got 65" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_auto_goes_the_way_of_linucb_until_ppo_takes_over(simulator: EmbeddedServer, tmp_path: Path) -> None:
    for algorithm in ("linucb", "auto"):
        assert train(simulator.host, tmp_path / algorithm, *flags(algorithm, 96)) == 0
    auto, linucb = (
        [line | {"not_hashed": None} for line in lines(tmp_path / name)] for name in ("auto", "linucb")
    )
    assert auto[:32] == linucb[:32]
    assert auto != linucb
    assert isinstance(load_weights(tmp_path / "auto" / "policy.safetensors"), QueryPolicy)
    assert isinstance(load_weights(tmp_path / "linucb" / "policy.safetensors"), BanditPolicy)


def test_auto_that_ends_before_ppo_took_over_is_linucb_and_goes_on_later(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    assert train(simulator.host, tmp_path / "whole", *flags("auto", 96)) == 0
    assert train(simulator.host, tmp_path / "short", *flags("auto", 16)) == 0
    assert train(simulator.host, tmp_path / "linucb", *flags("linucb", 16)) == 0
    assert outcome(tmp_path / "short") == outcome(tmp_path / "linucb")
    assert resume(tmp_path / "short", "--num-env-steps", "96") == 0
    assert outcome(tmp_path / "short") == outcome(tmp_path / "whole")


def test_a_bandits_run_is_used_as_any_other_is(simulator: EmbeddedServer, tmp_path: Path) -> None:
    assert train(simulator.host, tmp_path / "run", *flags("linucb", 64)) == 0
    spec = PolicySpec(kind="run", arg=str(tmp_path / "run"))
    source = run_source(spec)
    source.load()
    network = source.make(0).network
    observations = torch.zeros(2, *(network.policy.observation_space.shape or ()))
    assert network(observations).shape == (2, len(load_run(tmp_path / "run").mutators))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["algorithm"] == "linucb"
    sampled = run_source(PolicySpec(kind="run", arg=str(tmp_path / "run"), kwargs={"sample": True}))
    with pytest.raises(UserError, match="leave sample=true out"):
        sampled.load()


def test_steps_come_in_whole_rollouts_of_whoever_collects_them() -> None:
    def totals(algorithm: str, steps: int) -> tuple[int, int]:
        config = TrainConfig(algorithm=algorithm, num_env_steps=steps)  # type: ignore[arg-type] # a parameter's text
        return config.steps_by_bandit, config.total_steps

    assert totals("ppo", 500) == (0, 512)
    assert totals("linucb", 500) == (512, 512)
    assert totals("thompson", 1000) == (1024, 1024)
    assert totals("auto", 1000) == (1024, 1024)
    assert totals("auto", 3008) == (3008, 3008)
    assert totals("auto", 3009) == (3008, 3520)


def test_a_damaged_bandit_is_refused(simulator: EmbeddedServer, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    assert train(simulator.host, tmp_path / "run", *flags("linucb", 32)) == 0
    file = tmp_path / "run" / "policy.safetensors"
    weights = load_file(file)
    for name, tensor in (("model.precision", torch.zeros(3, 3)), ("model.directions", torch.zeros(0, 2**40))):
        save_file(weights | {name: tensor}, tmp_path / "bad", metadata={"mutagym_policy": "1"})
        with pytest.raises(UserError, match="damaged"):
            load_weights(tmp_path / "bad")
    negative = weights | {"model.precision": -weights["model.precision"]}
    save_file(negative, tmp_path / "bad", metadata={"mutagym_policy": "1"})
    with pytest.raises(UserError, match="damaged"):
        load_weights(tmp_path / "bad")


def test_a_bandit_has_credit_for_partial_refusals_and_no_values() -> None:
    infos = [{"partial": True}, {"partial": False}, {}]
    worth = MaskedBandit.bootstrap(cast("MaskedBandit", None), np.ones(3, np.bool_), infos)
    assert worth.tolist() == pytest.approx([PARTIAL_CREDIT, 0, 0])
