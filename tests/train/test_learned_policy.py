"""`from train import load_policy`: what a run learned, in use from Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli.main import execute
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import make_encoder
from records.errors import UserError
from simulator.process import EmbeddedServer
from tests.runs import WORLD, train
from train import load_policy

QUERIES = [f"How do I kill process number {k}?" for k in range(20)] + [
    "How do I blow up a balloon?",
    "Where can I shoot a good portrait?",
    "¿Cómo corto una tarta? 🎂",
]


def asked(run: Path, query: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The first mutator that `mutagym ask` takes."""
    assert execute(("ask", "--policy", str(run), "--trust-run", "--json", "--max-steps", "1", query)) == 0
    (line,) = capsys.readouterr().out.strip().splitlines()
    return str(json.loads(line)["steps"][0]["mutator"])


@pytest.fixture
def stranger(trained_run: Path, tmp_path: Path) -> Path:
    """A run that somebody else made, with an encoder that is none of ours."""
    folder = tmp_path / "theirs"
    shutil.copytree(trained_run, folder)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('"hashing"', '"hashing:theirs"'))
    return folder


@pytest.mark.parametrize("as_path", [str, Path])
def test_it_chooses_what_ask_chooses_first(
    trained_run: Path, capsys: pytest.CaptureFixture[str], as_path: type
) -> None:
    policy = load_policy(as_path(trained_run))
    for query in QUERIES[-3:]:
        assert policy.choose(query) == asked(trained_run, query, capsys)


def test_many_queries_go_as_each_does_alone(trained_run: Path) -> None:
    policy = load_policy(trained_run)
    assert policy.choose_many(QUERIES) == [policy.choose(query) for query in QUERIES]
    assert policy.choose_many([]) == []
    alone = np.concatenate([policy.scores([query]) for query in QUERIES])
    assert np.array_equal(policy.scores(QUERIES), alone)


def test_its_choice_is_the_most_probable_of_all_mutators(trained_run: Path) -> None:
    policy = load_policy(trained_run)
    for query in QUERIES:
        chances = policy.probabilities(query)
        assert tuple(chances) == policy.mutators
        assert sum(chances.values()) == pytest.approx(1)
        assert max(chances, key=lambda name: chances[name]) == policy.choose(query)


@pytest.mark.parametrize("algorithm", ["linucb", "auto"])
def test_runs_of_other_algorithms_are_used_alike(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    shape = ("--num-processes", "4", "--num-env-steps", "48", "--num-steps", "8", "--bandit-env-steps", "32")
    flags = ("--algorithm", algorithm, "--encoder", "hashing", "--ppo-epoch", "1", *shape)
    assert train(simulator.host, tmp_path / "run", *WORLD, *flags) == 0
    capsys.readouterr()
    policy = load_policy(tmp_path / "run")
    assert policy.choose(QUERIES[0]) == asked(tmp_path / "run", QUERIES[0], capsys)
    if algorithm == "auto":
        assert sum(policy.probabilities(QUERIES[0]).values()) == pytest.approx(1)
    else:
        with pytest.raises(ValueError, match="which has no probabilities"):
            policy.probabilities(QUERIES[0])


@pytest.mark.parametrize("query", ["", " \n\u200b", "\ud800"])
def test_a_query_that_is_none_is_an_error(trained_run: Path, query: str) -> None:
    with pytest.raises(ValueError, match="expected a query that is not blank"):
        load_policy(trained_run).choose(query)


def test_what_is_no_run_or_has_no_policy_yet_is_said_in_one_line(trained_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        load_policy(tmp_path)
    begun = tmp_path / "begun"
    shutil.copytree(trained_run, begun)
    (begun / "policy.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no policy.safetensors yet"):
        load_policy(begun)
    (begun / "policy.safetensors").write_bytes(b"{}")
    with pytest.raises(UserError, match="is damaged"):
        load_policy(begun)


def test_the_encoder_of_a_stranger_is_not_loaded_before_it_is_named(stranger: Path) -> None:
    with pytest.raises(UserError, match=r"which may hold code"):
        load_policy(stranger)
    for allowed in ({"trusted": True}, {"encoder": "hashing:theirs"}):
        with pytest.raises(UserError, match="hashing:theirs"):  # there is none: it was looked for
            load_policy(stranger, **allowed)
    assert load_policy(stranger, encoder=make_encoder("hashing")).choose(QUERIES[0])


def test_another_encoder_than_that_of_the_run_is_an_error(trained_run: Path) -> None:
    with pytest.raises(UserError, match="was trained with the encoder 'hashing'"):
        load_policy(trained_run, encoder="hashing:64")
    with pytest.raises(UserError, match="was trained on observations of"):
        load_policy(trained_run, encoder=make_encoder("hashing:64")).choose(QUERIES[0])


def test_an_encoder_of_a_server_needs_a_dispatcher(
    simulator: EmbeddedServer, dispatcher: Dispatcher, tmp_path: Path
) -> None:
    shape = ("--num-processes", "2", "--num-env-steps", "16", "--num-steps", "8", "--num-mini-batch", "2")
    flags = (*WORLD, "--encoder", "ollama:sim-embed", "--ppo-epoch", "1", *shape)
    assert train(simulator.host, tmp_path / "run", *flags) == 0
    with pytest.raises(UserError, match="pass dispatcher="):
        load_policy(tmp_path / "run")
    policy = load_policy(tmp_path / "run", dispatcher=dispatcher)
    assert policy.choose(QUERIES[0]) in policy.mutators


def test_importing_the_room_stays_cheap() -> None:
    code = "import sys, train; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)  # noqa: S603 - ours
    assert done.returncode == 0
