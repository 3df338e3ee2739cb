"""What `-p` may say, and which policy serves which agent."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.specs import PolicySpec, assign, parse_policy
from evaluation.user_class import Scalar

OPTIONS = "depth=3,rate=1e-3,deep=false,mode=fast,name='a, b',at=2024-01-01"
READ: dict[str, Scalar] = {"depth": 3, "rate": 0.001, "deep": False, "mode": "fast", "name": "a, b"}


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("noop", PolicySpec(kind="noop")),
        ("random,proportion=0.5", PolicySpec(kind="random", proportion=0.5)),
        ("fixed:shorten", PolicySpec(kind="fixed", arg="shorten")),
        ("llm:llama3:3b , proportion=2", PolicySpec(kind="llm", arg="llama3:3b", proportion=2.0)),
        (
            "run=runs/a,sample=true",
            PolicySpec(kind="run", arg="runs/a", options={"sample": True}),
        ),
        ("class=./own.py:Policy", PolicySpec(kind="class", arg="./own.py:Policy")),
        (
            f"class=a.Policy,proportion=0.5,{OPTIONS}",
            PolicySpec(
                kind="class", arg="a.Policy", options=READ | {"at": "2024-01-01"}, proportion=0.5
            ),
        ),
    ],
)
def test_a_value_is_read_as_kind_argument_options_and_proportion(
    text: str, spec: PolicySpec
) -> None:
    assert parse_policy(text) == spec


def test_a_folder_that_exists_is_a_run_whatever_its_name_holds(tmp_path: Path) -> None:
    folder = tmp_path / "train,a=b"
    folder.mkdir()
    assert parse_policy(str(folder)) == PolicySpec(kind="run", arg=str(folder))
    spec = PolicySpec(kind="run", arg=str(tmp_path), options={"sample": True}, proportion=0.5)
    assert parse_policy(f"{tmp_path},sample=true,proportion=0.5") == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("randm", r"unknown policy 'randm', and no such folder; did you mean random\?"),
        ("ucb", r"did you mean linucb\?"),
        ("runs/nowhere", "and no such folder; expected one of noop, random"),
        ("clas=a.B", r"begins with 'clas'; did you mean class or"),
        ("class=", "names nothing"),
        ("fixed:shortn", r"has an unknown mutator; did you mean shorten\?"),
        ("fixed", "expected fixed:MUTATOR"),
        ("noop:1", "expected noop"),
        ("noop,deep=1", r"unknown option 'deep'; expected proportion"),
        ("noop,deep", "'deep' after a comma; expected key=value"),
        ("class=a.B,x=1,x=2", "gives 'x' twice"),
        ("noop,proportion=true", "has proportion True"),
        *[
            (f"noop,proportion={text}", f"has proportion {value}; expected a finite number over 0")
            for text, value in (("0", "0"), ("-1", "-1"), ("inf", "inf"), ("half", "'half'"))
        ],
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line_that_says_why(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_policy(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_policy_or_an_error_of_one_kind(text: str) -> None:
    try:
        spec = parse_policy(text)
    except ValueError:
        return
    assert spec.proportion > 0


def test_a_name_says_all_but_the_proportion() -> None:
    for text in ("noop", "fixed:shorten", "llm:a:b", "class=my.Policy,depth=3"):
        assert parse_policy(f"{text},proportion=0.5").name == text.removeprefix("class=")


@pytest.mark.parametrize(
    ("proportions", "agents", "served"),
    [
        ([1.0], 3, [0, 0, 0]),
        ([0.5, 0.5], 3, [0, 0, 1]),
        ([1, 1, 1], 4, [0, 0, 1, 2]),
        ([0.1, 0.2, 0.7], 10, [0, 1, 1, 2, 2, 2, 2, 2, 2, 2]),
    ],
)
def test_agents_are_shared_out_by_largest_remainder(
    proportions: list[float], agents: int, served: list[int]
) -> None:
    assert assign(proportions, agents) == served


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


def test_a_policy_that_gets_no_agent_is_refused() -> None:
    with pytest.raises(ValueError, match="leave none to policy 2: use more agents"):
        assign([0.9, 0.1], 4)
