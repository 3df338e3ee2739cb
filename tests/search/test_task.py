"""Tasks: the bundled problems, files of one's own, the split, the call."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.task import ScorerError, bundled_task, read_task


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


def test_a_file_of_ones_own_is_read_with_what_it_leaves_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '{"question": "2 + 2?", "answer": 4, "source": "me"}\n\n'
        '{"question": "Hue?", "answer": "red", "id": 0}\n'
    )
    task = read_task(file)
    assert task.name == "mine"
    assert [(each.question, each.answer, each.kind) for each in task.problems] == [
        ("2 + 2?", "4", ""),
        ("Hue?", "red", ""),
    ]
    assert task.problems[1].id == "0"
    assert task.problems[0].id == read_task(file).problems[0].id


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"answer": "4"}', "has no question"),
        ('{"question": "2 + 2?"}', "has None under 'answer'; expected a text or a number"),
        ('{"question": 5, "answer": "4"}', "row 1 has 5 under 'question'; expected a text$"),
        (
            '{"question": "a", "answer": "4"}\n\n{"question": "a", "answer": "5"}',
            r"mine.jsonl, row 3 has the question of row 1, but another answer",
        ),
        (
            '{"question": "a", "answer": 4, "id": [1]}',
            r"row 1 has \[1\] under 'id'; expected a text",
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
    with pytest.raises(ValueError, match=says):
        read_task(file)


def test_a_table_is_a_task_too_and_its_answers_may_have_another_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("Question,right\n2 + 2?,4\nHue?,red\n2 + 2?,4\n")
    problems = read_task(path, answer_column="right").problems  # one of them is there twice
    assert [(each.question, each.answer) for each in problems] == [("2 + 2?", "4"), ("Hue?", "red")]
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


@pytest.mark.parametrize(
    ("body", "what"),
    [("raise KeyError('no')", "failed: KeyError: 'no' (line 2)"), ("return 1.1", "returned 1.1")],
)
def test_a_scorer_of_ones_own_needs_no_answers_and_what_it_does_wrong_is_named_with_the_problem(
    tmp_path: Path, body: str, what: str
) -> None:
    (tmp_path / "mine.py").write_text(f"def grade(problem, reply):\n    {body}\n")
    (tmp_path / "mine.jsonl").write_text('{"id": "short", "question": "Say\\nsomething short."}\n')
    task = read_task(tmp_path / "mine.jsonl", f"{tmp_path}/mine.py:grade")
    assert task.problems[0].answer is None
    expected = "expected a number from 0 to 1 (problem 'short': 'Say something short.')"
    with pytest.raises(ScorerError, match=re.escape(f"mine.py:grade' {what}; {expected}")):
        task.scorer(task.problems[0], "hello hello")
