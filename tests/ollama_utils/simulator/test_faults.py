"""Faults strike by the request and its occurrence alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.simulator.faults import FaultPlan, parse_faults

HALF = [{"kind": "error_500", "rate": 0.5}]


def _plan(faults: object, seed: int = 0) -> FaultPlan:
    plan = FaultPlan(seed)
    plan.set(parse_faults(faults))
    return plan


def test_the_rate_is_the_share_of_requests_that_fail() -> None:
    plan = _plan([{"kind": "error_500", "rate": 0.1}])
    struck = sum(plan.strike("generate", b"%d" % k, "m:latest") is not None for k in range(4000))
    assert 320 < struck < 480


@given(st.lists(st.binary(max_size=3), max_size=30), st.randoms(use_true_random=False))
def test_what_fails_does_not_depend_on_the_order_of_different_requests(
    bodies: list[bytes], mixer: object
) -> None:
    def outcome(order: list[bytes]) -> dict[bytes, list[str | None]]:
        plan, found = _plan(HALF), dict[bytes, list[str | None]]()
        for body in order:
            found.setdefault(body, []).append(plan.strike("generate", body, "m:latest"))
        return found

    shuffled = bodies.copy()
    mixer.shuffle(shuffled)  # type: ignore[attr-defined] # a random.Random by Hypothesis
    assert outcome(bodies) == outcome(shuffled)


def test_a_retry_is_another_occurrence_and_may_succeed() -> None:
    plan = _plan(HALF)
    attempts = [plan.strike("generate", b"the same", "m:latest") for _ in range(20)]
    assert set(attempts) == {None, "error_500"}


def test_another_seed_fails_other_requests() -> None:
    def struck(seed: int) -> list[bool]:
        plan = _plan(HALF, seed)
        return [plan.strike("generate", b"%d" % k, "m:latest") is None for k in range(50)]

    assert struck(1) == struck(1)
    assert struck(1) != struck(2)


def test_of_several_faults_the_first_that_strikes_counts() -> None:
    plan = _plan(
        [{"kind": "drop", "rate": 0.0}, {"kind": "empty", "rate": 1.0}, {"kind": "drop", "rate": 1.0}]
    )
    assert plan.strike("generate", b"x", "m:latest") == "empty"


def test_a_fault_names_its_model_with_or_without_the_tag() -> None:
    for name, full in (("m", "m:latest"), ("m:latest", "m:latest"), ("host:5000/m", "host:5000/m:latest")):
        plan = _plan([{"kind": "drop", "rate": 1.0, "model": name}])
        assert plan.strike("generate", b"x", full) == "drop"
        assert plan.strike("generate", b"x", "n:latest") is None


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ("drop", "a list of objects"),
        ({"kind": "drop", "rate": 1}, "a list of objects"),
        ([3], "'kind', 'rate' and perhaps 'model'"),
        ([{"kind": "drop"}], "'kind', 'rate' and perhaps 'model'"),
        ([{"kind": "drop", "rate": 1, "modell": "m"}], "'kind', 'rate' and perhaps 'model'"),
        ([{"kind": "quake", "rate": 1}], "kind must be one of"),
        ([{"kind": [], "rate": 1}], "kind must be one of"),
        ([{"kind": "drop", "rate": True}], "rate must be a number"),
        ([{"kind": "drop", "rate": 1.5}], "rate must be a number"),
        ([{"kind": "drop", "rate": 1, "model": 3}], "model must be a name"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(faults: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_faults(faults)
