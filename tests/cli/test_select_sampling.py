"""Replies left to chance in a user's own evaluation: each ask draws one, the same in every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.cli.searches import replies, requests, search
from tests.runs import read

EVALUATE = """
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call

def drawn(combination, datapoint, **options):
    return Call(model=combination["model"], prompt=datapoint["text"], options=options)

def share(told):
    # a number that other texts, or the same in another order, do not give
    assert len({reply.text for reply in told}) == 5
    return int.from_bytes("|".join(reply.text for reply in told).encode(), "big") % 997 / 997

def votes(combination, datapoint, ask):
    return share([ask(drawn(combination, datapoint, temperature=1)) for _ in range(5)])

def slip(combination, datapoint, ask):
    return votes(combination, datapoint, ask).nothing

def at_once(combination, datapoint, ask):
    calls = [drawn(combination, datapoint, temperature=1, seed=-1) for _ in range(5)]
    return len({reply.text for reply in map_parallel(ask, calls)}) / 5  # in whatever order

def as_it_is(combination, datapoint, ask):
    for options in ({"temperature": 1, "seed": 7}, {"temperature": 0}):
        first, again = (ask(drawn(combination, datapoint, **options)) for _ in range(2))
        assert (again.text, again.cached) == (first.text, True)
    return 1.0
"""


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    """Of a selection over a few lines; the function's name is still to be put behind them."""
    (tmp_path / "mine.py").write_text(EVALUATE)
    (tmp_path / "few.jsonl").write_text(
        "".join(json.dumps({"text": f"Tell me of number {k}."}) + "\n" for k in range(4))
    )
    few = ("--task", str(tmp_path / "few.jsonl"), "--models", "sim-target")
    return (*few, "--selector", "brute_force", "--evaluate")


def seeds(folder: Path) -> list[int]:
    """The seeds of the calls whose replies a run has."""
    return sorted(request["options"]["seed"] for request in requests(folder))


def test_asking_five_times_draws_five_replies_and_another_run_draws_the_same(
    simulator: EmbeddedServer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    told = (*flags, f"{tmp_path / 'mine.py'}:votes")
    one = search("select", simulator.host, tmp_path / "one", *told)
    other = search("select", simulator.host, tmp_path / "other", *told, "--max-concurrent", "1")
    assert len(set(seeds(one))) == 5
    assert replies(one) == 5 * 4
    assert (one / "results.json").read_bytes() == (other / "results.json").read_bytes()
    assert all(row["errors"] == 0 for row in read(one)["combinations"])
    seeded = search("select", simulator.host, tmp_path / "seeded", *told, "--seed", "1")
    assert not set(seeds(seeded)) & set(seeds(one))


def test_a_run_that_goes_on_draws_what_it_drew(
    simulator: EmbeddedServer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    mine, folder = tmp_path / "mine.py", tmp_path / "run"
    search("select", simulator.host, folder, *flags, f"{mine}:slip", code=2)
    paid = replies(folder)
    mine.write_text(EVALUATE.replace(".nothing", ""))
    before = simulator.stats()["calls"]
    assert execute(("select", "--resume", str(folder), "--trust-run")) == 0
    assert simulator.stats()["calls"] - before == replies(folder) - paid
    assert paid > 5
    whole = search("select", simulator.host, tmp_path / "whole", *flags, f"{mine}:votes")
    assert read(folder)["combinations"] == read(whole)["combinations"]
    before = simulator.stats()["calls"]
    assert execute(("select", "--resume", str(whole), "--trust-run")) == 0
    assert simulator.stats()["calls"] == before


def test_asking_at_once_draws_what_asking_in_turn_does(
    simulator: EmbeddedServer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    one, other = (
        search("select", simulator.host, tmp_path / name, *flags, f"{tmp_path / 'mine.py'}:{name}")
        for name in ("votes", "at_once")
    )
    assert seeds(one) == seeds(other)
    assert all(row["score"] == 1.0 for row in read(other)["combinations"])


def test_a_call_with_a_seed_or_at_temperature_0_is_sent_as_it_is(
    simulator: EmbeddedServer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    run = search("select", simulator.host, tmp_path / "run", *flags, f"{tmp_path / 'mine.py'}:as_it_is")
    assert [row["score"] for row in read(run)["combinations"]] == [1.0]
