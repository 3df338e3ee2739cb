"""`from train import load_policy`: what a run learned, in use from Python and by other commands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cli.main import execute
from ollama_utils.encoders import make_encoder
from records.errors import UserError
from simulator.process import EmbeddedServer
from tests.runs import WORLD, lines, train
from train import load_policy
from train.policy import WEIGHTS

QUERIES = [f"How do I kill process number {k}?" for k in range(20)] + [
    *("How do I blow up a balloon?", "Where can I shoot a good portrait?"),
    "¿Cómo corto una tarta? 🎂",
]


def asked(run: Path, query: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The first mutator that `mutagym ask` takes: `noop`, where it leaves the reply as it is."""
    few = ("--trust-run", "--json", "--max-steps", "1")
    capsys.readouterr()
    assert execute(("ask", "--policy", str(run), *few, query)) == 0
    (line,) = capsys.readouterr().out.strip().splitlines()
    _, *steps = json.loads(line)["steps"]
    return str(steps[0]["mutator"]) if steps else "noop"


def evaluated(run: Path, host: str, folder: Path) -> dict[str, str]:
    """By query the first mutator that the policy takes in `mutagym eval`."""
    few = ("--episodes", "12", "--baselines", "", "--save-transitions")
    flags = ("-m", str(run), "-p", str(run), *few, "--run-dir", str(folder))
    assert execute(("eval", *flags, "--ollama-host", host)) == 0
    begun = [line for line in lines(folder) if not line["step_number"]]
    refused = {
        line["original_query"]
        for line in begun
        if not line["mutator"] and line["outcome"] == "refused" and not line["partial"]
    }
    return {
        line["original_query"]: line["mutator"]
        for line in begun
        if line["mutator"] and line["original_query"] in refused
    }


@pytest.fixture(scope="module")
def bandit_run(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bandit") / "run"
    shape = ("--num-processes", "4", "--num-env-steps", "48", "--encoder", "hashing:64")
    assert train(simulator.host, folder, *WORLD, *shape, "--algorithm", "linucb") == 0
    return folder


@pytest.fixture(params=["trained_run", "bandit_run"])
def run(request: pytest.FixtureRequest) -> Path:
    """A run of PPO, and one of a bandit."""
    return Path(request.getfixturevalue(request.param))


def test_it_chooses_as_ask_and_eval_do_when_an_episode_begins(
    simulator: EmbeddedServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is where the query was refused as it stands."""
    policy = load_policy(str(run))
    taken = evaluated(run, simulator.host, tmp_path / "eval")
    assert len(taken) > 3
    assert {query: policy.choose(query) for query in taken} == taken
    for query in [*taken][:3]:
        assert policy.choose(query) == asked(run, query, capsys)


def test_many_queries_go_as_each_does_alone(run: Path) -> None:
    policy = load_policy(run)
    alone = np.concatenate([policy.scores([query]) for query in QUERIES])
    np.testing.assert_array_equal(policy.scores(QUERIES), alone)
    best = [policy.mutators[action] for action in alone.argmax(axis=1)]
    assert [policy.choose(query) for query in QUERIES] == best


def test_its_choice_is_the_most_probable_of_all_mutators(
    trained_run: Path, bandit_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(trained_run)
    for query in QUERIES:
        chances = policy.probabilities(query)
        assert tuple(chances) == policy.mutators
        assert sum(chances.values()) == pytest.approx(1)
        assert max(chances, key=lambda name: chances[name]) == policy.choose(query)
    with pytest.raises(ValueError, match="which has no probabilities"):
        load_policy(bandit_run).probabilities(QUERIES[0])
    sampled = ("-p", f"run={bandit_run},sample=true", "-m", str(bandit_run), "--trust-run")
    assert execute(("eval", *sampled)) == 2
    assert "leave sample=true out" in capsys.readouterr().err


@pytest.mark.parametrize("query", ["", " \n\u200b", "\ud800"])
def test_a_query_that_is_none_is_an_error(trained_run: Path, query: str) -> None:
    with pytest.raises(ValueError, match="expected a query that is not blank"):
        load_policy(trained_run).choose(query)


def weights(name: str, tensor: torch.Tensor | None) -> Callable[[Path], object]:
    """Exchange one of a policy's tensors; None leaves it out."""

    def exchange(run: Path) -> None:
        tensors = {k: each for k, each in load_file(run / WEIGHTS).items() if k != name}
        tensors |= {} if tensor is None else {name: tensor}
        save_file(tensors, run / WEIGHTS, metadata={"format": "pt", "actions": "14"})

    return exchange


HEAD = "mlp_extractor.head.weight"
DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (shutil.rmtree, "is not a run; expected the folder of a `mutagym train` run"),
    (lambda run: (run / WEIGHTS).unlink(), f"has no {WEIGHTS} yet: wait for its end"),
    (lambda run: (run / WEIGHTS).write_bytes(b"{}"), "is damaged, or no policy of a run"),
    (weights(HEAD, None), "is damaged, or no policy of a run"),
    (weights(HEAD, torch.zeros(3, 3)), "is damaged, or no policy of a run"),
    (lambda run: (run / "config.toml").write_text("lr = 1"), "config.toml' has None as 'mutators'"),
    (lambda run: (run / "queries.json").write_text("{}"), "queries.json"),
]


def test_what_is_no_run_or_damaged_is_one_line(trained_run: Path, tmp_path: Path) -> None:
    for row, (damage, words) in enumerate(DAMAGES):
        run = Path(shutil.copytree(trained_run, tmp_path / str(row)))
        damage(run)
        with pytest.raises(UserError) as caught:
            load_policy(run)
        assert words in str(caught.value), row
        assert "\n" not in str(caught.value), row


def test_another_encoder_than_that_of_the_run_is_an_error(trained_run: Path) -> None:
    with pytest.raises(UserError, match="was trained with the encoder 'hashing'"):
        load_policy(trained_run, encoder="hashing:64")
    with pytest.raises(UserError, match="was trained on observations of"):
        load_policy(trained_run, encoder=make_encoder("hashing:64")).choose(QUERIES[0])


def test_importing_the_room_stays_cheap() -> None:
    code = "import sys, train; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)  # noqa: S603 - ours
    assert done.returncode == 0
