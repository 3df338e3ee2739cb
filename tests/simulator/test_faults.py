"""Faults strike by the request and its occurrence alone; their lists are checked and read back."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.faults import FIELDS, KINDS, FaultPlan, listed, parse_faults, read_faults

HALF = [{"kind": "error_500", "rate": 0.5}]


def _plan(faults: object, seed: int = 0) -> FaultPlan:
    return FaultPlan(seed, parse_faults(faults))


def _met(plan: FaultPlan, body: bytes, endpoint: str = "generate", model: str = "m:latest") -> str | None:
    fault = plan.strike(endpoint, body, model)
    return None if fault is None else fault.kind


def _struck(fault: dict[str, Any], occurrences: int) -> list[bool]:
    """Which of a request's occurrences a fault strikes."""
    plan = _plan([{"kind": "busy_503"} | fault])
    return [_met(plan, b"the same") is not None for _ in range(occurrences)]


def test_the_rate_is_the_share_of_requests_that_fail() -> None:
    plan = _plan([{"kind": "error_500", "rate": 0.1}])
    struck = sum(_met(plan, b"%d" % k) is not None for k in range(4000))
    assert 320 < struck < 480


@given(st.lists(st.binary(max_size=3), max_size=30), st.integers(1, 4), st.randoms(use_true_random=False))
def test_what_fails_does_not_depend_on_the_order_of_different_requests(
    bodies: list[bytes], burst: int, mixer: Random
) -> None:
    def outcome(order: list[bytes]) -> dict[bytes, list[str | None]]:
        plan = _plan([{"kind": "error_500", "rate": 0.4, "burst": burst}])
        found = dict[bytes, list[str | None]]()
        for body in order:
            found.setdefault(body, []).append(_met(plan, body))
        return found

    shuffled = bodies.copy()
    mixer.shuffle(shuffled)
    assert outcome(bodies) == outcome(shuffled)


def test_a_retry_is_another_occurrence_and_may_succeed() -> None:
    assert set(_struck({"rate": 0.5}, 20)) == {True, False}


@given(st.floats(0, 1), st.integers(1, 6), st.none() | st.integers(1, 12))
def test_a_burst_strikes_the_occurrences_that_follow_its_beginning(
    rate: float, burst: int, first: int | None
) -> None:
    begun = [hit and (first is None or n < first) for n, hit in enumerate(_struck({"rate": rate}, 20))]
    expected = [any(begun[max(0, n - burst + 1) : n + 1]) for n in range(20)]
    given_first = {} if first is None else {"first": first}
    assert _struck({"rate": rate, "burst": burst} | given_first, 20) == expected


def test_the_first_occurrences_alone_can_fail() -> None:
    assert _struck({"rate": 1, "first": 2}, 5) == [True, True, False, False, False]
    assert _struck({"rate": 1, "first": 1, "burst": 3}, 5) == [True, True, True, False, False]


def test_another_seed_fails_other_requests() -> None:
    def struck(seed: int) -> list[bool]:
        plan = _plan(HALF, seed)
        return [_met(plan, b"%d" % k) is None for k in range(50)]

    assert struck(1) == struck(1)
    assert struck(1) != struck(2)


def test_of_several_faults_the_first_that_strikes_counts() -> None:
    plan = _plan(
        [{"kind": "drop", "rate": 0.0}, {"kind": "empty", "rate": 1.0}, {"kind": "drop", "rate": 1.0}]
    )
    assert _met(plan, b"x") == "empty"


def test_a_fault_names_its_model_with_or_without_the_tag() -> None:
    for name, full in (("m", "m:latest"), ("m:latest", "m:latest"), ("host:5000/m", "host:5000/m:latest")):
        plan = _plan([{"kind": "drop", "rate": 1.0, "model": name}])
        assert _met(plan, b"x", model=full) == "drop"
        assert _met(plan, b"x", model="n:latest") is None


@pytest.mark.parametrize(
    ("fault", "endpoints"),
    [
        ({"kind": "not_done"}, {"generate", "chat"}),
        ({"kind": "wrong_type"}, set(FIELDS)),
        ({"kind": "wrong_type", "field": "choices"}, {"chat/completions"}),
        ({"kind": "wrong_type", "field": "data"}, {"embeddings"}),
        ({"kind": "wrong_type", "field": "model"}, set(FIELDS)),
        ({"kind": "wrong_type", "field": "total_duration"}, {"generate", "chat", "embed"}),
        ({"kind": "wrong_type", "field": "eval_count"}, {"generate", "chat"}),
        ({"kind": "wrong_type", "field": "response"}, {"generate"}),
        ({"kind": "wrong_type", "field": "message"}, {"chat"}),
        ({"kind": "wrong_type", "field": "embeddings"}, {"embed"}),
    ],
)
def test_a_fault_strikes_only_replies_that_have_what_it_changes(
    fault: dict[str, Any], endpoints: set[str]
) -> None:
    plan = _plan([{"rate": 1} | fault])
    assert {name for name in FIELDS if _met(plan, b"x", endpoint=name)} == endpoints


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_faults_is_read_back_as_it_was_meant(kind: str, tmp_path: Path) -> None:
    faults = parse_faults([{"kind": kind, "rate": 0.25}, {"kind": kind, "rate": 1, "model": "m", "first": 3}])
    assert parse_faults(listed(faults)) == faults
    (tmp_path / "faults.json").write_text(json.dumps(listed(faults)))
    assert read_faults(str(tmp_path / "faults.json")) == faults


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ("drop", "a list of objects"),
        ({"kind": "drop", "rate": 1}, "a list of objects"),
        ([3], "an object with 'kind' and 'rate', got 3"),
        ([{"kind": "drop"}], "an object with 'kind' and 'rate', got {'kind': 'drop'}"),
        ([{"kind": "drop", "rate": 1, "modell": "m"}], r"may have \['kind', .*'at'\], got \['modell'\] too"),
        ([{"kind": "drop", "rate": 1, "seconds": 3}], r"got \['seconds'\] too"),
        ([{"kind": "quake", "rate": 1}], "kind must be one of .*'drop'.* got 'quake'"),
        ([{"kind": [], "rate": 1}], "kind must be one of"),
        ([{"kind": "drop", "rate": True}], "rate must be a number from 0 to 1, got True"),
        ([{"kind": "drop", "rate": 1.5}], "rate must be a number from 0 to 1, got 1.5"),
        ([{"kind": "drop", "rate": 1, "model": 3}], "model must be a name, got 3"),
        ([{"kind": "drop", "rate": 1, "first": 0}], "first must be a whole number of at least 1, got 0"),
        ([{"kind": "drop", "rate": 1, "burst": 2.0}], "burst must be a whole number from 1 to 1000, got 2.0"),
        ([{"kind": "drop", "rate": 1, "at": "lunch"}], r"at one of \['start', .*'after'\], got 'lunch'"),
        ([{"kind": "hang", "rate": 1, "at": "after"}], r"at one of \['start', 'body', 'end'\], got 'after'"),
        ([{"kind": "stall", "rate": 1, "seconds": 0}], "seconds must be a number above 0, got 0"),
        ([{"kind": "latency", "rate": 1, "seconds": "1"}], "seconds must be a number above 0, got '1'"),
        ([{"kind": "enormous", "rate": 1, "bytes": 2**40}], "bytes must be a whole number from 1 to"),
        ([{"kind": "not_json", "rate": 1, "status": 99}], "status must be a whole number from 200 to 599"),
        (
            [{"kind": "wrong_type", "rate": 1, "field": "mood"}],
            r"field must be one of \['response', .*'mood'",
        ),
    ],
)
def test_a_fault_that_cannot_be_is_refused(faults: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_faults(faults)


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "cannot be read: No such file"), ("[", "Expecting value"), ("{}", "must be a list")],
)
def test_a_file_of_faults_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "faults.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=rf"the file of faults '{path}'.* {says}"):
        read_faults(str(path))
