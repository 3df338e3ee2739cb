"""What is claimed of a policy's gain holds, however often one looks, and whichever mutator is the best."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from scorers.statistics import wilson_interval
from train.gain import HOPELESS, SURE, GainConfig, GainRecord, Results, share_of_look

RUNS = 150
QUERIES = 200


def record(queries: int = QUERIES, groups: Sequence[str] | None = None) -> GainRecord:
    names = groups or [str(query) for query in range(queries)]
    return GainRecord(names, GainConfig(until_sure=True))


def looked(policies: Sequence[Results], fixed: Mapping[str, Results]) -> GainRecord:
    """What is known after a look at each policy, 512 steps apart, or until it is enough."""
    found = record(len(policies[0]))
    found.add_mutators(fixed)
    for number, policy in enumerate(policies, 1):
        found.add(policy, steps=512 * number, kept_steps=1, steps_left=512 * (len(policies) - number))
        if found.end:
            break
    return found


def drawn(chance: np.random.Generator, rates: Sequence[float]) -> list[list[float]]:
    """For each rate whether each kept query is answered."""
    return [[float(x) for x in chance.random(QUERIES) < rate] for rate in rates]


def false_claims(worlds: Iterator[tuple[list[Results], dict[str, Results]]]) -> tuple[float, float]:
    """The interval of the share of runs that end with a gain claimed."""
    ends = [looked(*world).end for world in worlds]
    return wilson_interval(ends.count(SURE), len(ends), 0.999)


def test_the_parts_of_all_looks_add_up_to_one() -> None:
    shares = [share_of_look(number) for number in range(1, 60)]
    assert sum(shares) == pytest.approx(1)
    assert sorted(shares, reverse=True) == shares


def test_of_a_large_file_no_more_is_kept_than_is_named() -> None:
    assert GainConfig().share(600) == 0
    assert GainConfig(until_sure=True).share(600) == 0.3
    assert GainConfig(until_sure=True).share(100_000) == 0.01
    assert GainConfig(until_sure=True, kept=0.5).share(100_000) == 0.5


@pytest.mark.parametrize(("runs", "looks"), [(60, 12), pytest.param(200, 80, marks=pytest.mark.soak)])
def test_without_a_gain_none_is_claimed_however_often_one_looks(runs: int, looks: int) -> None:
    """Many looks at the same queries, at policies that wander among actions that are all as good."""

    def worlds() -> Iterator[tuple[list[Results], dict[str, Results]]]:
        for seed in range(runs):
            chance = np.random.default_rng([seed, 1])
            actions = np.array(drawn(chance, (0.5, 0.5)))
            chosen, policies = chance.integers(2, size=QUERIES), []
            for _ in range(looks):
                moved = chance.random(QUERIES) < 0.1
                chosen = np.where(moved, chance.integers(2, size=QUERIES), chosen)
                policies.append(actions[chosen, np.arange(QUERIES)].tolist())
            yield policies, dict(zip("ab", actions.tolist(), strict=True))

    assert false_claims(worlds())[0] < 0.05


def test_beating_a_mutator_that_only_seemed_the_best_is_no_gain() -> None:
    """The policy is the best mutator; a rival picked by a few trials is often another one, and is beaten."""
    against_all, against_picked = [], []
    for seed in range(RUNS):
        chance = np.random.default_rng([seed, 2])
        best, *others = drawn(chance, (0.8, 0.6, 0.6, 0.6))
        fixed = dict(zip("abcd", [best, *others], strict=True))
        trials = chance.binomial(5, (0.8, 0.6, 0.6, 0.6)) + chance.random(4) / 2
        picked = "abcd"[int(trials.argmax())]
        policies = drawn(chance, (0.8,))
        against_all.append(looked(policies, fixed).end == SURE)
        against_picked.append(looked(policies, {picked: fixed[picked]}).end == SURE)
    assert wilson_interval(sum(against_all), RUNS, 0.999)[0] < 0.05
    assert wilson_interval(sum(against_picked), RUNS, 0.999)[0] > 0.05


def test_a_large_gain_is_found_and_its_interval_holds() -> None:
    for seed in range(20):
        chance = np.random.default_rng([seed, 3])
        policy, *fixed = drawn(chance, (0.9, 0.5, 0.4))
        found = looked([policy], dict(zip("ab", fixed, strict=True)))
        assert found.end == SURE
        gain = found.looks[-1].gain
        assert 0 < gain.low <= gain.mean <= gain.high
        assert gain.low < 0.4 < gain.high


def test_a_query_that_stands_in_the_file_many_times_counts_once() -> None:
    policy, fixed = [1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]
    alone = looked([policy], {"a": fixed}).looks[-1].gain
    found = record(groups=["w", "x", "y", "z"] * 50)
    found.add_mutators({"a": fixed * 50})
    assert found.add(policy * 50, steps=512, kept_steps=1, steps_left=0).gain == pytest.approx(alone)


def test_calls_that_failed_count_for_neither_side() -> None:
    gain = looked([[None] * 100], {"a": [0.0] * 100}).looks[-1].gain
    assert gain.low <= 0
    assert gain.high == pytest.approx(1, abs=0.01)
    gain = looked([[1.0] * 100], {"a": [None] * 100}).looks[-1].gain
    assert gain.low <= 0
    assert gain.high == pytest.approx(1, abs=0.01)


def test_the_slope_is_the_growth_by_a_thousand_steps() -> None:
    order = np.random.default_rng(4).permutation(100)
    before, after = ([float(query < answered) for query in order] for answered in (40, 80))
    found = looked([before, after], {"a": [1.0] * 100})
    slope = found.looks[-1].slope
    assert found.looks[0].slope is None
    assert slope is not None
    assert slope.mean == pytest.approx(0.4 / 512 * 1000)
    assert 0 < slope.low < slope.mean < slope.high


def test_a_run_that_cannot_come_far_ends_by_a_forecast_but_not_at_its_first_look() -> None:
    poor, good = [0.0] * 400, [1.0] * 200 + [0.0] * 200
    assert looked([poor], {"a": good}).end == ""
    found = looked([poor, poor, poor], {"a": good})
    assert found.end == HOPELESS
    assert len(found.looks) == 2
    assert found.looks[-1].at_most(512) < 0.05


def test_a_run_without_until_sure_never_ends_by_itself() -> None:
    found = GainRecord([str(query) for query in range(400)], GainConfig(kept=0.3))
    found.add_mutators({"a": [0.0] * 400})
    assert found.add([1.0] * 400, steps=512, kept_steps=1, steps_left=512).gain.low > 0
    assert found.end == ""


def test_what_is_known_survives_as_plain_data() -> None:
    found = looked([[1.0, 0.0, None], [1.0, 1.0, 0.0]], {"a": [0.0, None, 1.0], "b": [0.0, 0.0, 0.0]})
    again = record(3)
    again.restore(json.loads(json.dumps(found.state())))
    assert again.state() == found.state()
    assert again.summary() == found.summary()
    assert again.text() == found.text()
    with pytest.raises(ValueError, match="4 kept queries"):
        record(4).restore(found.state())
