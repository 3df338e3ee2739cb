"""What a policy could gain: on made-up tries, where it is known, and on the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cli.main import execute
from evaluation.headroom import FOLDS, Read, Side, Try, arms, headroom
from simulator.process import EmbeddedServer

NAMES = ("a", "b", "c")


def side(
    success: NDArray[Any], embeddings: NDArray[np.float64], groups: list[str] | None = None
) -> Side:
    """A side on which each mutator opened what a table (queries, mutators) says."""
    tries = [
        [[Try(adopted=True, why_not="", success=float(each))] for each in row] for row in success
    ]
    names = groups or [str(k) for k in range(len(success))]
    none = Read(groups=[], embeddings=np.zeros((0, embeddings.shape[1])))
    read = Read(groups=names, embeddings=embeddings)
    return Side(asked=len(success), found=len(success), queries=read, rest=none, tries=tries)


def kinds(count: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of so many queries a kind, 0 or 1, and an embedding that shows it."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(2, size=count)
    embeddings = rng.normal(size=(count, 8)) * 0.2
    embeddings[:, 0] += 2 * kind - 1
    return kind, embeddings


def test_where_the_query_says_which_mutator_helps_a_policy_is_worth_it() -> None:
    kind, embeddings = kinds(80)
    table = np.stack([kind == 0, kind == 1, np.zeros(80)], axis=1)
    found = headroom(NAMES, side(table, embeddings), None, max_steps=3, least=0.05, seed=0)
    assert found.verdict(0.05) == "worth it"
    assert found.gain.mean == pytest.approx(1 - found.fixed, abs=0.05)
    assert found.cascade[:2] in {("a", "b"), ("b", "a")}
    assert found.oracle == found.cascade_worth == 1.0


def test_where_one_mutator_is_best_for_all_it_is_not() -> None:
    rng = np.random.default_rng(0)
    table = np.stack([np.ones(150), rng.random(150) < 0.5, np.zeros(150)], axis=1)
    _, embeddings = kinds(150)
    found = headroom(NAMES, side(table, embeddings), None, max_steps=3, least=0.05, seed=0)
    assert (found.best_fixed, found.fixed, found.gain.mean) == ("a", 1.0, 0.0)
    assert found.verdict(0.05) == "not worth it"


def test_chance_is_no_gain() -> None:
    """Which mutator helps is drawn for each query: an oracle gains much, and a policy nothing."""
    gains = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        _, embeddings = kinds(60, seed)
        table = rng.random((60, 3)) < 0.4
        found = headroom(NAMES, side(table, embeddings), None, max_steps=3, least=0.05, seed=seed)
        assert found.verdict(0.05) != "worth it"
        gains.append(found.gain.mean)
    assert abs(np.mean(gains)) < 0.05


def test_with_guard_queries_both_sides_count_alike() -> None:
    """A mutator that opens and unlocks everything is worth nothing, unless the query is read."""
    rng = np.random.default_rng(0)
    sides = []
    for sign, count in ((1, 40), (-1, 90)):
        embeddings = rng.normal(size=(count, 8)) * 0.2
        embeddings[:, 0] += sign
        table = np.stack([np.ones(count), np.zeros(count), np.zeros(count)], axis=1)
        sides.append(side(table, embeddings))
    found = headroom(NAMES, *sides, max_steps=3, least=0.05, seed=0)
    assert (found.best_fixed, found.fixed, found.cascade_worth) == ("noop", 0.0, 0.0)
    assert found.gain.mean > 0.95
    opened, *_ = arms(NAMES, *sides)
    assert opened.unlocked is not None
    assert (opened.opened.mean, opened.unlocked.mean) == (1.0, 1.0)


def test_queries_of_a_group_are_never_on_both_sides_of_a_fold() -> None:
    """What helps is the same within a group and drawn for each: nothing is to be learned."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(12), 8)
    embeddings = rng.normal(size=(12, 16))[groups]
    best = rng.integers(3, size=12)[groups]
    table = np.eye(3)[best]
    of_group = side(table, embeddings, [str(group) for group in groups])
    alone = side(table, embeddings)
    gains = [
        headroom(NAMES, each, None, max_steps=3, least=0.05, seed=0).gain
        for each in (of_group, alone)
    ]
    assert gains[1].mean > 0.3 > gains[0].mean
    assert gains[0].high - gains[0].low > gains[1].high - gains[1].low
    few = side(table[:40], embeddings[:40], [str(k % 3) for k in range(40)])
    assert FOLDS > 3
    headroom(NAMES, few, None, max_steps=3, least=0.05, seed=0)


def test_the_command_says_what_every_mutator_did_and_asks_no_more_than_it_said(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = Path("envs/data/guard.csv").resolve()
    flags = (
        *("--ollama-host", simulator.host, "--target-model", "sim-target"),
        *("--mutator-model", "sim-mutator", "--encoder", "hashing:64", "--refused", "15"),
        *("--mutators", "noop,shorten,add_politeness,synonym_replace"),
        *("--cache", str(tmp_path / "cache")),
    )
    places = (tmp_path / "one.json", tmp_path / "two.json", tmp_path / "guarded.json")
    calls = []
    for place in places[:2]:
        before = simulator.stats()["calls"]
        assert execute(("headroom", *flags, "--json", str(place))) == 0
        calls.append(simulator.stats()["calls"] - before)
    said = capsys.readouterr()
    assert "harmless queries: at most" in said.err
    assert "worth a policy" in said.out or "not known" in said.out
    found, again = (json.loads(place.read_text()) for place in places[:2])
    assert found == again
    tries = 15 * (2 + 1 + 1)  # a model's mutator twice, and its rewording is a call, too
    assert calls[0] <= found["queries"]["harmless"]["asked"] + tries + 15 * 2 + 1
    assert calls[1] <= 2  # what is asked before all, to see
    assert found["queries"]["harmless"]["tried"] == 15
    assert [arm["mutator"] for arm in found["arms"]] == [
        *("shorten", "add_politeness", "synonym_replace")
    ]
    assert {arm["unlocked"]["rate"] for arm in found["arms"]} == {None}
    code = execute(("headroom", *flags, "--guard-queries", str(guard), "--json", str(places[2])))
    assert code == 0
    guarded = json.loads(places[2].read_text())
    assert guarded["queries"]["guard"]["tried"] == 15
    assert None not in {arm["unlocked"]["rate"] for arm in guarded["arms"]}
    assert [arm["opened"] for arm in guarded["arms"]] == [arm["opened"] for arm in found["arms"]]
