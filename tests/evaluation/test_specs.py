"""What `-p` may say, and which policy serves which agent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.specs import PolicySpec, assign, parse_policy
from evaluation.user_class import Scalar

OPTIONS = "depth=3,rate=1e-3,deep=false,mode=fast,name='a, proportion=1',at=2024-01-01"
READ: dict[str, Scalar] = {
    "depth": 3,
    "rate": 0.001,
    "deep": False,
    "mode": "fast",
    "name": "a, proportion=1",
    "at": "2024-01-01",
}


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("noop", PolicySpec(kind="noop")),
        ("llm:llama3:3b , proportion=2", PolicySpec(kind="llm", arg="llama3:3b", proportion=2.0)),
        (
            f"class=a.Policy,proportion=0.5,{OPTIONS}",
            PolicySpec(kind="class", arg="a.Policy", options=READ, proportion=0.5),
        ),
    ],
)
def test_a_value_is_read_as_kind_argument_options_and_proportion(
    text: str, spec: PolicySpec
) -> None:
    assert parse_policy(text) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ucb", "did you mean linucb"),
        ("clas=a.B", "did you mean class="),
        ("noop:1", "expected noop"),
        ("run=", "'run=' is incomplete; expected run=FOLDER"),
        ("run=a,foo=1", "a run takes sample=true or sample=false alone"),
        ("run=a,sample=1.0", "a run takes sample=true or sample=false alone"),
        ("noop,deep", "has 'deep'; expected key=value"),
        ("noop,deep=1", "unknown option 'deep'"),
        ("class=a.B,x=1,x=2", "each key once"),
        ("noop,proportion=inf", "has proportion inf; expected a finite number over 0"),
        ("noop,proportion=half", "has proportion 'half'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line_that_says_why(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_policy(text)
    assert "\n" not in str(caught.value)


@settings(max_examples=30)
@given(st.text(max_size=60))
def test_any_text_is_a_policy_or_an_error_of_one_kind(text: str) -> None:
    try:
        spec = parse_policy(text)
    except ValueError:
        return
    assert spec.proportion is None or spec.proportion > 0


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(1, 50))
def test_each_policy_serves_its_quota_rounded_down_or_up(
    proportions: list[float], agents: int
) -> None:
    try:
        served = assign(proportions, agents)
    except ValueError:  # a policy gets none
        assert agents * min(proportions) / sum(proportions) < 1
        return
    assert len(served) == agents
    for i, share in enumerate(proportions):
        quota = agents * share / sum(proportions)
        assert math.floor(quota - 1e-9) <= served.count(i) <= math.ceil(quota + 1e-9)
