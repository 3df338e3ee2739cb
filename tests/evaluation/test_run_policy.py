"""The policy of a run: loaded, asked alone and in company, sampled, sent to another process."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from envs.mission import MissionConfig
from envs.observation import observation_size
from evaluation.policies.instance import block_scores
from evaluation.policies.policy import View
from evaluation.policies.specs import PolicySpec, parse_policy
from evaluation.policies.trained import RunSource, run_source
from mutators.registry import DEFAULT_MUTATORS
from records.errors import UserError
from train.policy import WEIGHTS, load_run, load_weights

SIZE = observation_size(384, len(DEFAULT_MUTATORS))


def view(observation: NDArray[np.float32], agent: int = 0, *, step: int = 0, attempt: int = 0) -> View:
    """What an agent sees, of which the policy heeds the observation."""
    return View(
        observation=observation,
        original="q",
        query="q",
        mutators=DEFAULT_MUTATORS,
        tried=(),
        last_outcome=None,
        last_reward=0.0,
        step_count=step,
        max_steps=5,
        attempt=attempt,
        agent=agent,
    )


def source(path: Path, *, sample: bool = False) -> RunSource:
    """The policies of a run."""
    return run_source(PolicySpec(kind="run", arg=str(path), kwargs={"sample": True} if sample else {}))


def observations(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Observations (count, SIZE) that the environment might show."""
    return np.random.default_rng(seed).normal(size=(count, SIZE)).astype(np.float32)


def test_a_run_says_what_it_was_trained_with(trained_run: Path) -> None:
    run = load_run(trained_run)
    assert (run.name, run.encoder, run.target_model) == ("small", "hashing", "sim-target")
    assert run.mutators == DEFAULT_MUTATORS
    assert len(set(run.train_queries)) > 300


def test_the_policy_takes_the_action_that_sb3_calls_the_likeliest(trained_run: Path) -> None:
    policy = source(trained_run).make(0)
    shown = observations(64)
    likeliest, _ = load_weights(trained_run / WEIGHTS).predict(shown, deterministic=True)
    assert [policy.step(view(row)) for row in shown] == list(likeliest)
    assert len(set(likeliest)) > 1


def test_the_network_gives_the_logits_that_step_chooses_by(trained_run: Path) -> None:
    import torch

    policy = source(trained_run).make(0)
    shown = observations(16)
    with torch.no_grad():
        logits = policy.network(torch.from_numpy(shown)).numpy()
    assert logits.shape == (16, len(DEFAULT_MUTATORS))
    assert np.allclose(np.exp(logits).sum(axis=1), 1, atol=1e-5)
    chosen = [policy.choose(row, view(row_shown)) for row, row_shown in zip(logits, shown, strict=True)]
    assert chosen == [policy.step(view(row)) for row in shown]


def test_all_policies_of_a_run_share_one_network(trained_run: Path) -> None:
    made = source(trained_run)
    assert made.make(0).network is made.make(1).network


def test_threads_that_ask_the_network_at_once_each_get_their_own_logits(trained_run: Path) -> None:
    policy = source(trained_run).make(0)
    shown = observations(8)
    alone = [block_scores(policy.network, [(0, row)])[0] for row in shown]
    switched_every_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads get into each other's way
    try:
        with ThreadPoolExecutor(8) as pool:
            again = list(
                pool.map(lambda k: block_scores(policy.network, [(0, shown[k % 8])])[0], range(2000))
            )
    finally:
        sys.setswitchinterval(switched_every_s)
    assert all(np.array_equal(row, alone[k % 8]) for k, row in enumerate(again))


def test_a_sampled_action_depends_on_seed_step_and_attempt_alone(trained_run: Path) -> None:
    made = source(trained_run, sample=True)
    row = observations(1)[0]
    drawn = [made.make(seed).step(view(row, step=step)) for seed in range(40) for step in range(5)]
    again = [made.make(seed).step(view(row, step=step)) for seed in range(40) for step in range(5)]
    assert drawn == again
    assert len(set(drawn)) > len(DEFAULT_MUTATORS) // 2
    tries = {made.make(0).step(view(row, attempt=attempt)) for attempt in range(40)}
    assert len(tries) > 1


def test_sampled_actions_come_as_often_as_they_are_likely(trained_run: Path) -> None:
    import torch

    made = source(trained_run, sample=True)
    row = observations(1)[0]
    with torch.no_grad():
        logits = made.make(0).network(torch.from_numpy(row[None])).numpy()[0]
    drawn = np.bincount([made.make(seed).choose(logits, view(row)) for seed in range(2000)], minlength=14)
    expected = 2000 * np.exp(logits)
    assert (np.abs(drawn - expected) < 4 * np.sqrt(expected) + 1).all()


def test_without_sampling_the_seed_changes_nothing(trained_run: Path) -> None:
    one, other = (source(trained_run).make(seed) for seed in (1, 2))
    shown = observations(8)
    assert [one.step(view(row)) for row in shown] == [other.step(view(row)) for row in shown]


def test_a_pickled_policy_holds_the_path_of_its_network_and_chooses_the_same(trained_run: Path) -> None:
    policy = source(trained_run).make(0)
    pickled = pickle.dumps(policy)
    assert len(pickled) < 1000
    again = pickle.loads(pickled)  # noqa: S301 - just pickled
    shown = observations(5)
    assert [again.step(view(row)) for row in shown] == [policy.step(view(row)) for row in shown]


@pytest.mark.soak
def test_a_policy_that_is_sent_to_another_process_loads_its_network_there(trained_run: Path) -> None:
    policy = source(trained_run).make(0)
    code = (
        "import pickle, sys, numpy as np\n"
        "policy, views = pickle.load(sys.stdin.buffer)\n"
        "print([policy.step(view) for view in views])\n"
    )
    views = [view(row, agent) for agent, row in enumerate(observations(5))]
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], input=pickle.dumps((policy, views)), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == str([policy.step(each) for each in views])


def test_a_policy_written_anew_is_loaded_anew(trained_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained_run, folder)
    before = source(folder).make(0).network
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    assert source(folder).make(0).network is not before


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp_extractor.actor.0.weight", (0, 10**15)),
        ("action_net.linear.weight", (10**15, 0)),
        ("action_net.linear.weight", (0,)),
    ],
)
def test_weights_that_claim_a_size_that_they_do_not_fill_are_refused(
    trained_run: Path, tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    tensors = load_file(trained_run / WEIGHTS) | {name: torch.zeros(shape)}
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(UserError, match="is damaged, or no policy of a run"):
        load_weights(tmp_path / WEIGHTS)


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (shutil.rmtree, ["is not a run", "mutagym train"]),
        (lambda run: (run / WEIGHTS).unlink(), [f"no {WEIGHTS} yet", "--resume"]),
        (lambda run: (run / "config.toml").write_text("a = = 1"), ["config.toml", "not a TOML file"]),
        (lambda run: (run / "config.toml").write_text("lr = 1"), ["config.toml", "'mutators'"]),
        (lambda run: (run / "queries.json").unlink(), ["queries.json", "cannot be read"]),
        (lambda run: (run / "queries.json").write_text("{}"), ["queries.json", "'train'"]),
    ],
)
def test_a_run_that_is_no_good_is_refused_in_one_line(
    trained_run: Path, tmp_path: Path, breaks: object, says: list[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained_run, folder)
    assert callable(breaks)
    breaks(folder)
    with pytest.raises(UserError) as caught:
        load_run(folder)
    assert all(word in str(caught.value) for word in says), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["smple=true", "sample=yes", "sample=1"])
def test_a_run_takes_no_other_option_than_sample(trained_run: Path, option: str) -> None:
    with pytest.raises(UserError, match="sample=true or sample=false"):
        run_source(parse_policy(f"run={trained_run},{option}"))


@pytest.mark.parametrize(
    ("option", "samples"), [(",sample=true", True), (",sample=false", False), ("", False)]
)
def test_sample_true_and_false_are_told_apart(trained_run: Path, option: str, *, samples: bool) -> None:
    assert run_source(parse_policy(f"run={trained_run}{option}")).sample is samples


def test_a_mission_with_other_mutators_or_another_encoder_is_refused(trained_run: Path) -> None:
    run = load_run(trained_run)
    run.check_fits(MissionConfig(encoder="hashing"))
    with pytest.raises(UserError, match="--mutators"):
        run.check_fits(MissionConfig(encoder="hashing", mutators=("noop", "paraphrase")))
    with pytest.raises(UserError, match="--encoder hashing"):
        run.check_fits(MissionConfig(encoder="hashing:64"))
