"""What `-p` may say, and which policy serves which agent."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.policies.specs import PolicySpec, assign, parse_policy


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("noop", PolicySpec(kind="noop")),
        ("random,proportion=0.5", PolicySpec(kind="random", proportion=0.5)),
        ("fixed:shorten", PolicySpec(kind="fixed", arg="shorten")),
        ("llm:llama3.2:3b , proportion=2", PolicySpec(kind="llm", arg="llama3.2:3b", proportion=2.0)),
        ("epsilon_greedy,epsilon=0.2", PolicySpec(kind="epsilon_greedy", kwargs={"epsilon": 0.2})),
        ("run=runs/a,sample=true", PolicySpec(kind="run", arg="runs/a", kwargs={"sample": True})),
        (
            "class=a.Policy,proportion=0.5,depth=3,rate=1e-3,deep=false,mode=fast,name='a, b',at=2024-01-01",
            PolicySpec(
                kind="class",
                arg="a.Policy",
                kwargs={
                    "depth": 3,
                    "rate": 0.001,
                    "deep": False,
                    "mode": "fast",
                    "name": "a, b",
                    "at": "2024-01-01",
                },
                proportion=0.5,
            ),
        ),
        ("class=./own.py:Policy", PolicySpec(kind="class", arg="./own.py:Policy")),
    ],
)
def test_a_value_is_read_as_kind_argument_options_and_proportion(text: str, spec: PolicySpec) -> None:
    assert parse_policy(text) == spec


def test_a_folder_that_exists_is_a_run_whatever_its_name_holds(tmp_path: Path) -> None:
    folder = tmp_path / "train,a=b"
    folder.mkdir()
    assert parse_policy(str(folder)) == PolicySpec(kind="run", arg=str(folder))


def test_a_run_and_a_folder_may_have_options(tmp_path: Path) -> None:
    spec = PolicySpec(kind="run", arg=str(tmp_path), kwargs={"sample": True}, proportion=0.5)
    assert parse_policy(f"{tmp_path},sample=true,proportion=0.5") == spec


def test_a_users_own_mutator_may_be_named() -> None:
    assert parse_policy("fixed:shout", ("noop", "shout")).arg == "shout"
    with pytest.raises(ValueError, match="did you mean shout"):
        parse_policy("fixed:shot", ("noop", "shout"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("randm", r"unknown policy 'randm', and no such folder; did you mean random\?"),
        ("ucb", r"did you mean ucb1 or linucb\?"),
        ("runs/nowhere", "unknown policy 'runs/nowhere', and no such folder; expected one of noop, random"),
        ("", "unknown policy ''"),
        ("clas=a.B", r"begins with 'clas'; did you mean class\?"),
        ("class=", "names nothing"),
        ("fixed:shortn", r"has an unknown mutator; did you mean shorten\?"),
        ("fixed", "expected fixed:MUTATOR"),
        ("llm:", "expected llm:MODEL"),
        ("noop:1", "expected noop"),
        ("noop,deep=1", r"unknown option 'deep'; expected one of proportion"),
        ("exp3,gama=1", r"did you mean gamma"),
        ("noop,deep", "'deep' after a comma; expected key=value"),
        ("noop,", "'' after a comma"),
        ("class=a.B,x=1,x=2", "gives 'x' twice"),
        ("class=a.B,x='a", "not closed"),
        *[
            (f"noop,proportion={text}", f"has proportion {value}; expected a finite number over 0")
            for text, value in (("0", "0"), ("-1", "-1"), ("inf", "inf"), ("nan", "nan"), ("half", "'half'"))
        ],
        ("noop,proportion=true", "has proportion True"),
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
    for text in ("noop", "fixed:shorten", "llm:a:b", "my.Policy,depth=3", "exp3,gamma=0.2"):
        spelled = f"class={text}" if text.startswith("my.") else text
        assert parse_policy(f"{spelled},proportion=0.5").name == text


@pytest.mark.parametrize(
    ("proportions", "agents", "served"),
    [
        ([1.0], 3, [0, 0, 0]),
        ([0.5, 0.5], 4, [0, 0, 1, 1]),
        ([0.5, 0.5], 3, [0, 0, 1]),
        ([1, 1, 1], 4, [0, 0, 1, 2]),
        ([0.1, 0.2, 0.7], 10, [0, 1, 1, 2, 2, 2, 2, 2, 2, 2]),
        ([0.0, 1.0], 2, [1, 1]),
    ],
)
def test_agents_are_shared_out_by_largest_remainder(
    proportions: list[float], agents: int, served: list[int]
) -> None:
    assert assign(proportions, agents) == served


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(1, 50))
def test_each_policy_serves_its_quota_rounded_down_or_up(proportions: list[float], agents: int) -> None:
    try:
        served = assign(proportions, agents)
    except ValueError:
        assert agents * min(proportions) / sum(proportions) < 1
        return
    assert len(served) == agents
    for i, share in enumerate(proportions):
        quota = agents * share / sum(proportions)
        assert math.floor(quota - 1e-9) <= served.count(i) <= math.ceil(quota + 1e-9)


@pytest.mark.parametrize(
    ("proportions", "agents", "message"),
    [
        ([0.5, 0.5], 1, "leave none to policy 2: use more agents"),
        ([0.9, 0.1], 4, "leave none to policy 2"),
        ([0.0, 0.0], 4, "not all 0"),
        ([-1.0, 2.0], 4, "at least 0"),
        ([math.nan], 4, "finite"),
        ([], 4, "not all 0"),
    ],
)
def test_shares_that_come_to_no_agent_are_refused(
    proportions: list[float], agents: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        assign(proportions, agents)
