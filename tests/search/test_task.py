"""Tasks: the bundled problems, files of one's own, the split, the call."""

from __future__ import annotations

import calendar
import json
import re
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.answers import is_right
from search.task import SEED_INSTRUCTIONS, ask_problem, bundled_task, read_task

CHECKS: dict[str, str] = json.loads(
    Path(__file__).with_name("everyday_checks.json").read_text("utf-8")
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _ordered(words: str, place: int | None, *, backwards: bool = False) -> str:
    ordered = sorted(words.split(), key=str.lower, reverse=backwards)
    return ", ".join(ordered) if place is None else ordered[place]


TOOLS = {
    "n": lambda text, letter: text.count(letter),
    "vowels": lambda text: sum(text.count(letter) for letter in "aeiou"),
    "consonants": lambda text: len(text) - sum(text.count(letter) for letter in "aeiou"),
    "az": lambda words, place=None: _ordered(words, place),
    "za": lambda words, place=None: _ordered(words, place, backwards=True),
    "short": lambda words: ", ".join(sorted(words.split(), key=len)),
    "long": lambda words: ", ".join(sorted(words.split(), key=len, reverse=True)),
    "day": lambda *when: DAYS[date(*when).weekday()],
    "shift": lambda day, by: DAYS[(DAYS.index(day) + by) % 7],
    "between": lambda first, last: (date(*last) - date(*first)).days,
    "days_in": lambda year, month: calendar.monthrange(year, month)[1],
    "len": len,
}
"""What the checks are written in."""


def test_the_bundled_task_has_forty_problems_of_each_of_five_kinds() -> None:
    problems = bundled_task().problems
    assert Counter(problem.kind for problem in problems) == dict.fromkeys(
        ("arithmetic", "letters", "sorting", "calendar", "units"), 40
    )
    assert (
        len({problem.id for problem in problems})
        == len({each.question for each in problems})
        == 200
    )


def test_each_bundled_answer_is_what_its_check_comes_to() -> None:
    for problem in bundled_task().problems:
        value = eval(CHECKS[problem.id], {"__builtins__": {}}, TOOLS)  # noqa: S307 - the checks are our own
        assert problem.answer is not None
        assert is_right(f"Answer: {value}", problem.answer), problem


def test_a_reply_is_worth_one_when_its_answer_is_right_and_else_nothing() -> None:
    task = bundled_task()
    problem = task.problems[0]
    assert task.scorer(problem, f"Let me see.\n\nAnswer: {problem.answer}.") == 1
    assert task.scorer(problem, "I am not sure. Answer: unknown") == 0


@given(st.integers(0, 5), st.floats(0.1, 0.45), st.floats(0.46, 0.9))
def test_a_split_parts_the_problems_and_a_larger_share_only_adds(
    seed: int, less: float, more: float
) -> None:
    task = bundled_task()
    kept, out = task.split(less, seed)
    place = {problem.id: place for place, problem in enumerate(task.problems)}
    assert sorted([*kept.problems, *out.problems], key=lambda each: place[each.id]) == list(
        task.problems
    )
    assert set(out.problems) <= set(task.split(more, seed)[1].problems)
    assert len(out.problems) == round(200 * less)


@given(st.integers(2, 9), st.floats(0.01, 0.99), st.integers(0, 9))
def test_a_small_task_has_problems_on_both_sides_whatever_their_order(
    count: int, share: float, seed: int
) -> None:
    some = replace(bundled_task(), problems=bundled_task().problems[:count])
    kept, out = some.split(share, seed)
    assert len(out.problems) == min(max(1, round(share * count)), count - 1)
    _, same = replace(some, problems=some.problems[::-1]).split(share, seed)
    assert set(out.problems) == set(same.problems)
    assert set(kept.problems).isdisjoint(out.problems)


def test_nothing_is_held_out_when_nothing_is_asked_for_and_an_empty_side_is_an_error() -> None:
    task = bundled_task()
    kept, out = task.split(0, 0)
    assert (len(kept.problems), len(out.problems)) == (200, 0)
    with pytest.raises(ValueError, match=r"held_out is 1; expected a share from 0 to below 1"):
        task.split(1, 0)
    one = replace(task, problems=task.problems[:1])
    assert one.split(0, 0)[0] == one
    with pytest.raises(
        ValueError, match=r"held_out is 0\.3, but the task has 1 problem: bring more"
    ):
        one.split(0.3, 0)


def test_a_call_carries_instructions_and_question_and_is_repeatable() -> None:
    problem = bundled_task().problems[0]
    call = ask_problem(problem, SEED_INSTRUCTIONS, model="m", options={"num_ctx": 512}, seed=7)
    assert (call.system, call.prompt) == (SEED_INSTRUCTIONS, problem.question)
    assert call.options == {"temperature": 0, "num_ctx": 512, "seed": 7}
    assert call.repeatable


def test_a_file_of_ones_own_is_read_with_what_it_leaves_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '{"question": "2 + 2?", "answer": 4, "source": "me"}\n\n'
        '{"question": "Hue?", "answer": "red", "id": "h"}\n'
    )
    task = read_task(file)
    assert task.name == "mine"
    assert [(each.question, each.answer, each.kind) for each in task.problems] == [
        ("2 + 2?", "4", ""),
        ("Hue?", "red", ""),
    ]
    assert task.problems[1].id == "h"
    assert task.problems[0].id == read_task(file).problems[0].id


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"answer": "4"}', "has no question"),
        ('{"question": "2 + 2?"}', "has None under 'answer'; expected a text or a number"),
        ('{"question": ["x"], "answer": "4"}', "under 'question'; expected a text$"),
        (
            '{"question": 5, "answer": "4"}',
            "mine.jsonl, row 1 has 5 under 'question'; expected a text$",
        ),
        ('{"question": "a", "answer": [{}]}', "under 'answer'; expected a text or a number, or a"),
        (
            '{"question": "a", "answer": "%s"}' % ("word " * 31),
            "mine.jsonl, row 1: .* under the default --scorer: expected one number, or one line",
        ),
        (
            '{"question": "a", "answer": "4"}\n\n{"question": "a", "answer": "5"}',
            r"mine.jsonl, row 3 has the question of row 1, but another answer",
        ),
        (
            '{"question": "a", "answer": 4, "id": "x"}\n{"question": "b", "answer": 4, "id": "x"}',
            r"mine.jsonl, row 2 has the id 'x' of row 1; give it its own",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        read_task(file)
    assert "\n" not in str(caught.value)


def test_a_table_is_a_task_too_and_its_answers_may_have_another_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("Question,right\n2 + 2?,4\nHue?,red\n")
    task = read_task(path, answer_column="right")
    assert [(each.question, each.answer) for each in task.problems] == [
        ("2 + 2?", "4"),
        ("Hue?", "red"),
    ]
    with pytest.raises(ValueError, match="--answer-column names 'wrong'"):
        read_task(path, answer_column="wrong")


def test_answers_are_read_where_gsm8k_and_squad_have_them_and_a_measure_scores(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.jsonl"
    sum_of_two = {"question": "3 + 4?", "answer": "It is 3+4=<<3+4=7>>7.\n#### 7"}
    file.write_text(json.dumps(sum_of_two) + '\n{"question": "Where?", "answer": ["a", "b c"]}')
    task = read_task(file)
    assert [task.scorer(each, "Answer: 7") for each in task.problems] == [1, 0]
    assert [task.scorer(each, "b c") for each in task.problems] == [0, 1]
    by_f1 = read_task(file, "f1")
    assert by_f1.scorer(by_f1.problems[1], "Answer: c") == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match=r"row 2: the answer 'a', which .* under --scorer number"):
        read_task(file, "number")
    with pytest.raises(ValueError, match="--scorer is 'numer'; did you mean number"):
        read_task(file, "numer")


def test_a_repeated_question_is_dropped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mine.jsonl"
    rows = ('{"question": "a", "answer": "4"}', '{"question": "b", "answer": "4"}')
    file.write_text("\n".join((*rows, rows[0], '{"question": "b", "answer": 4, "id": "x"}')))
    assert [problem.question for problem in read_task(file).problems] == ["a", "b"]
    assert caplog.messages == [f"{file}: left out 2 of 4 problems as duplicates"]


SCORERS = """
def grade(problem, reply):
    return len(reply) / 10
def odd(problem):
    return 1
def broken(problem, reply):
    raise KeyError("no")
async def later(problem, reply):
    return 1.0
class Later:
    async def __call__(self, problem, reply):
        return 1.0
later_too = Later()
def returned(problem, reply):
    import numpy as np
    return eval(reply)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SCORERS)
    (tmp_path / "mine.jsonl").write_text('{"question": "Say something short."}\n')
    return tmp_path


def test_a_scorer_of_ones_own_needs_no_answers(mine: Path) -> None:
    task = read_task(mine / "mine.jsonl", f"{mine}/mine.py:grade")
    assert task.problems[0].answer is None
    assert task.scorer(task.problems[0], "hello") == 0.5
    with pytest.raises(ValueError, match=r"returned 1\.1; expected a number from 0 to 1"):
        task.scorer(task.problems[0], "hello hello")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine.py:odd", r"expected a plain def \(problem, reply\) -> float"),
        (
            "mine.py:later",
            r"later' is an async def; expected a plain def \(problem, reply\) -> float",
        ),
        ("mine.py:later_too", "is an async def; expected a plain def"),
    ],
)
def test_a_scorer_that_cannot_be_used_is_one_line(mine: Path, name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_task(mine / "mine.jsonl", f"{mine}/{name}")


def test_a_scorer_that_raises_is_named_with_its_line_the_problem_and_what_was_expected(
    mine: Path,
) -> None:
    problem = '{"id": "short", "question": "Say something short.\\nThen %s stop."}' % (
        "more, " * 50
    )
    (mine / "mine.jsonl").write_text(problem)
    task = read_task(mine / "mine.jsonl", f"{mine}/mine.py:broken")
    with pytest.raises(ValueError, match="mine") as raised:
        task.scorer(task.problems[0], "hello")
    what = "failed: KeyError: 'no' (line 7); expected a number from 0 to 1"
    where = "(problem 'short': 'Say something short. Then more, more, "
    assert f"mine.py:broken' {what} {where}" in str(raised.value)
    assert len(str(raised.value)) < 250 + len(str(mine))


@pytest.mark.parametrize(
    "value",
    ["None", "2.0", "'1'", "b'1'", "[1]", "-0.1", "float('nan')", "1j", "np.ones(2)", "problem"],
)
def test_what_a_scorer_returns_is_told_where_it_is_no_number_from_0_to_1(
    mine: Path, value: str
) -> None:
    task = read_task(mine / "mine.jsonl", f"{mine}/mine.py:returned")
    shown = f"{eval(value, {'np': np, 'problem': task.problems[0]})!r:.60}"  # noqa: S307 - written above
    says = f"mine.py:returned' returned {shown}; expected a number from 0 to 1 (problem "
    with pytest.raises(ValueError, match=re.escape(says)):
        task.scorer(task.problems[0], value)


@pytest.mark.parametrize(
    "value", ["True", "1", "1.0", "np.float32(1)", "np.bool_(True)", "np.array(1)"]
)
def test_any_number_will_do_as_a_score(mine: Path, value: str) -> None:
    task = read_task(mine / "mine.jsonl", f"{mine}/mine.py:returned")
    assert task.scorer(task.problems[0], value) == 1.0
