"""Policies that are fitted on the training queries: cascade, best_fixed, linucb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import execute
from evaluation.fit import cascade_order
from simulator.process import EmbeddedServer
from tests.content_filter import ANSWER, said, server_that
from tests.evaluation.evaluations import evaluate
from tests.runs import lines, read

REFUSAL = "I'm sorry, but I can't help with that."
MUTATORS = '''
from mutators.registry import by_rule

@by_rule
def please(query, earlier, seed):
    """Ask nicely."""
    return f"Please. {query}"

@by_rule
def hello(query, earlier, seed):
    """Greet."""
    return f"Hello. {query}"
'''
ANSWERED = {"How": {1, 2}, "Please.": {1, 2, 3}, "Hello.": {4}}
"""By the first word of a question, the cranes modulo 8 that get an answer."""


def crane(text: str) -> int:
    """The number of the crane that a text asks about."""
    return int(text.rsplit(maxsplit=1)[-1].removesuffix("?"))


@given(
    st.integers(1, 6).flatmap(
        lambda queries: st.lists(
            st.lists(st.booleans(), min_size=queries, max_size=queries), min_size=1, max_size=5
        )
    )
)
def test_each_mutator_of_a_cascade_answers_at_least_as_much_more_as_any_after_it(
    table: list[list[bool]],
) -> None:
    answered = np.array(table)
    order = cascade_order(answered)
    assert sorted(order) == list(range(len(table)))
    for place, action in enumerate(order):
        left = ~answered[order[:place]].any(axis=0)
        gains = (answered & left).sum(axis=1)
        assert gains[action] == max(gains[order[place:]])
        if not gains[action]:
            assert answered[action].sum() == max(answered[order[place:]].sum(axis=1))


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation at three steps on a server that answers by ANSWERED."""
    folder = tmp_path_factory.mktemp("folded")
    (folder / "mine.py").write_text(MUTATORS)
    (folder / "q.txt").write_text("\n".join(f"How do I fold crane {k}?" for k in range(64)))

    def answer(text: str) -> tuple[int, Any]:
        first = text.split(maxsplit=1)[0]
        return 200, said(ANSWER if crane(text) % 8 in ANSWERED[first] else REFUSAL)

    own = ",".join(f"{folder / 'mine.py'}:{name}" for name in ("please", "hello"))
    flags = (
        *("--mutators", f"noop,{own}", "--queries", str(folder / "q.txt"), "--max-steps", "3"),
        *("-p", "best_fixed", "--baselines", "cascade", "--intent-threshold", "0"),
        *("--encoder", "hashing:64", "--save-transitions", "--always-reword", "--fit-calls"),
    )
    with server_that(answer) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        for name, calls in (("all", "1000"), ("some", "50")):
            place = ("--run-dir", str(folder / name))
            assert execute(("eval", *host, *flags, calls, *place)) == 0
    return folder


def test_a_fit_finds_on_the_training_queries_what_a_hand_would_and_keeps_to_its_calls(
    folded: Path,
) -> None:
    queries = read(folded / "all", "queries.json")
    (sides,) = queries["missions"].values()
    train = [crane(query["text"]) for query in queries["sets"][sides["train"]]]
    shares = {
        first: np.mean([number % 8 in answered for number in train])
        for first, answered in ANSWERED.items()
    }
    names = dict(zip(ANSWERED, ("noop", "please", "hello"), strict=True))
    best_fixed, cascade = read(folded / "all")["fits"]
    assert cascade["order"] == ["please", "hello", "noop"]
    assert cascade["means"] == {names[first]: share for first, share in shares.items()}
    assert cascade["calls"] == 3 * len(train)
    assert best_fixed["chosen"] == "please"
    for first, share in shares.items():  # an episode ends with its answer, or after three steps
        mean = share * 0.95 - (1 - share) * 0.15
        assert best_fixed["means"][names[first]] == pytest.approx(mean)
    for fit, (least, most) in zip(read(folded / "some")["fits"], ((30, 50), (48, 48)), strict=True):
        assert least <= fit["calls"] <= most


def test_a_cascade_rewords_the_original_in_its_order_until_there_is_an_answer(
    folded: Path,
) -> None:
    results = read(folded / "all")
    team = [each["name"] for each in results["teams"]].index("cascade")
    for row in (row for row in results["episodes"] if row["team"] == team):
        kind = crane(row["query"]) % 8
        steps = 1 if kind in ANSWERED["Please."] else 2 if kind in ANSWERED["Hello."] else 3
        assert row["actions"] == ["please", "hello", "noop"][:steps]
        assert row["success"] == (kind in {1, 2, 3, 4})
    cascade = [line for line in lines(folded / "all") if line["team"] == team]
    assert {line["query_before"] == line["original_query"] for line in cascade} == {True}
    fixed = [line for line in lines(folded / "all") if line["team"] != team]
    assert any(line["query_before"].startswith("Please. How") for line in fixed)


@pytest.mark.parametrize("policy", ["best_fixed", "cascade", "linucb"])
def test_a_fit_ends_within_its_calls_where_some_fail(tmp_path: Path, policy: str) -> None:
    seen: set[str] = set()

    def answer(text: str) -> tuple[int, Any]:  # one that fails is no call of a fit's
        is_again = text in seen
        seen.add(text)
        return (200, said(REFUSAL)) if is_again or crane(text) % 3 else (500, {"error": "no"})

    (tmp_path / "mine.py").write_text(MUTATORS)
    (tmp_path / "q.txt").write_text("\n".join(f"How do I fold crane {k}?" for k in range(400)))
    flags = (
        *(
            "--mutators",
            f"noop,{tmp_path / 'mine.py'}:please",
            "--queries",
            str(tmp_path / "q.txt"),
        ),
        *("-p", policy, "--baselines=", "--encoder", "hashing:64", "--intent-threshold", "0"),
        *("--max-steps", "2", "--episodes", "1", "--fit-calls", "60", "--call-attempts", "1"),
    )
    with server_that(answer) as server:
        host = ("--ollama-host", server.host, "--target-model", "m")
        assert execute(("eval", *host, *flags, "--run-dir", str(tmp_path / "run"))) == 0
    (fit,) = read(tmp_path / "run")["fits"]
    assert 50 < fit["calls"] <= 2 * 60
    assert len(seen) <= 60 + 2


def test_linucb_learns_by_its_calls(simulator: EmbeddedServer, tmp_path: Path) -> None:
    flags = ("--mutators", "noop,shorten", "--max-steps", "2", "-p", "linucb", "--episodes", "3")
    calls = ("--fit-calls", "100", "--always-reword")
    assert evaluate(simulator, tmp_path / "run", *flags, *calls) == 0
    (fit,) = read(tmp_path / "run")["fits"]
    assert (fit["chosen"], set(fit["means"])) == (None, {"noop", "shorten"})
    assert 98 < fit["calls"] <= 100
