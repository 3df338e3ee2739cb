"""A task: problems, and a scorer that says what a model's reply to each is worth, from 0 to 1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ollama_utils.types import Call, Completion, Think, is_text
from records.errors import nearest
from records.user_file import error_line, load_function, score_of
from scorers.answers import MEASURES, Measure, check_answers, is_right, rightness
from simulator.settings import PROBLEMS

SEED_INSTRUCTIONS = 'Solve the problem. End with "Answer:" and the answer alone.'
"""The plain instructions that a search begins with."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One question of a task."""

    id: str
    """No other problem of the task has it."""
    question: str
    answer: str | None
    """The right answer, the first of several; None where a scorer of your own needs none."""
    kind: str = ""
    others: tuple[str, ...] = ()
    """Further right answers."""

    @property
    def answers(self) -> tuple[str, ...]:
        """All right answers."""
        return tuple(filter(None, (self.answer, *self.others)))


Scorer = Callable[[Problem, str], float]
"""`(problem, reply) -> float`: what a reply is worth, 0 to 1."""


Asking = Callable[
    [Callable[[Call], Completion]], Callable[[str, Problem], tuple[Completion, float | None]]
]
"""From what sends calls to `(prompt, problem) -> (reply, score)`; where a call failed, the reply
has its error, and the score is None."""


class ScorerError(ValueError):
    """A user's scorer or evaluation raised, or did not return a number from 0 to 1."""


def measured(measure: Measure, problem: Problem, reply: str) -> float:
    """How right a reply is by a measure; 0 where no answer is known."""
    return rightness(measure, reply, problem.answers)


exact_answer: Scorer = partial(measured, is_right)
"""1 for a reply whose final answer is the problem's, see `scorers.answers.is_right`; else 0."""


def load_scorer(spec: str) -> Scorer:
    """The function that `FILE.py:NAME` names, with every value checked to be from 0 to 1.

    Raises:
        ValueError: there is no such function, its file fails while it is imported, or it cannot be
            called with (problem, reply).
    """
    function = load_function(spec, ("problem", "reply"), "scorer")

    def scorer(problem: Problem, reply: str) -> float:
        place = f"problem {problem.id!r:.60}: {' '.join(problem.question.split())!r:.60}"
        expected = f"expected a number from 0 to 1 ({place})"
        try:
            value = function(problem, reply)
        except (Exception, SystemExit) as error:
            failed = f"scorer {spec!r} failed: {error_line(spec, error)}; {expected}"
            raise ScorerError(failed) from error
        if (score := score_of(value)) is None:
            raise ScorerError(f"scorer {spec!r} returned {value!r:.60}; {expected}")
        return score

    return scorer


@dataclass(frozen=True, kw_only=True)
class Task:
    """Problems and their scorer."""

    name: str
    problems: tuple[Problem, ...]
    """At least one, with ids and questions all different."""
    scorer: Scorer = exact_answer
    """What a reply to one of them is worth, 0 to 1."""
    asking: Asking | None = None
    """How one is asked under a prompt and scored, where that takes more than one call."""

    def split(self, held_out: float, seed: int) -> tuple[Task, Task]:
        """The task to search on and the one held out, both in the order of the problems.

        Those held out have the smallest hashes of the seed and the question, so that a larger share
        only adds to them, whatever the order of the problems.

        The share is rounded to whole problems, at least one on each side; 0 holds out none.

        Raises:
            ValueError: the share is not from 0 to below 1, or there is one problem to split.
        """
        if not 0 <= held_out < 1:
            raise ValueError(f"held_out is {held_out!r}; expected a share from 0 to below 1")
        total = len(self.problems)
        if held_out and total == 1:
            more = "bring more, or set held_out to 0"
            raise ValueError(f"held_out is {held_out!r}, but the task has 1 problem: {more}")
        count = min(max(1, round(held_out * total)), total - 1) if held_out else 0
        order = sorted(self.problems, key=lambda each: _digest(f"{seed}:{each.question}", 16))
        out = set(order[:count])
        kept = tuple(problem for problem in self.problems if problem not in out)
        held = tuple(problem for problem in self.problems if problem in out)
        return replace(self, problems=kept), replace(self, problems=held)


def read_task(path: Path, scorer: str | None = None, *, answer_column: str | None = None) -> Task:
    """The task of a file with the columns `question` and, unless a function scores, `answer`.

    Args:
        path: a file of queries, see `envs.query_files`, such as JSON Lines or CSV. It may also have
            `id` and `kind`. A question that an earlier row has is left out, which the log says.
        scorer: `FILE.py:NAME`, a function `(problem, reply) -> float` from 0 to 1, which several
            threads call at once, or a name of `scorers.answers.MEASURES`; None: `is_right`.
        answer_column: the column of the answers; None: `answer` or `answers`.

    Raises:
        ValueError: the file, a row or the scorer cannot be used; one line says why.
    """
    from envs.query_files import ANSWER_COLUMNS, answers_in, read_table

    measure, function = _scoring(scorer)
    table = read_table(path)
    answers = table.find(answer_column, ANSWER_COLUMNS, "--answer-column") or "answer"
    columns = [table.find(None, [name]) or name for name in ("question", "id", "kind")]
    problems: dict[str, Problem] = {}
    rows: dict[str, int] = {}
    repeated = 0
    for row, cells in table.rows([answers, *columns]):
        place = f"{path}, row {row}"
        question, given, kind = (_text(cells, column, place) for column in columns)
        if not question:
            raise ValueError(f"{place} has no question; expected a text under 'question'")
        found = answers_in(cells.get(answers))
        if not found and (measure or str(cells.get(answers) or "").strip()):
            expected = "a text or a number, or a list of these; or a --scorer that needs no answers"
            raise ValueError(
                f"{place} has {cells.get(answers)!r:.60} under {answers!r}; expected {expected}"
            )
        if question in problems:
            if problems[question].answers != found:
                first = f"row {rows[question]}, but another answer"
                raise ValueError(f"{place} has the question of {first}: leave one of them out")
            repeated += 1
            continue
        name = given or _digest(question, 6)
        if name in rows:
            raise ValueError(f"{place} has the id {name!r} of row {rows[name]}; give it its own")
        rows[question] = rows[name] = row
        problems[question] = Problem(
            id=name,
            question=question,
            answer=found[0] if found else None,
            kind=kind,
            others=found[1:],
        )
    if repeated:
        total = repeated + len(problems)
        _log.warning("%s: left out %d of %d problems as duplicates", path, repeated, total)
    if measure:
        golds = [(rows[question], problem.answers) for question, problem in problems.items()]
        flag = f"--scorer {scorer}" if scorer else "the default --scorer"
        check_answers(golds, measure, path, flag)
    return Task(name=path.stem, problems=tuple(problems.values()), scorer=function)


def _scoring(scorer: str | None) -> tuple[Measure | None, Scorer]:
    """The measure of answers that a scorer is, if it is one, and what scores by it."""
    measure = is_right if scorer is None else MEASURES.get(scorer)
    if measure is not None:
        return measure, partial(measured, measure)
    name = str(scorer)
    if ":" not in name:
        known = (*MEASURES, "FILE.py:NAME")
        raise ValueError(f"--scorer is {name!r}; {nearest(name, known)}")
    return None, load_scorer(name)


@cache
def bundled_task() -> Task:
    """The bundled everyday problems: arithmetic, letters, sorting, calendar and units."""
    return replace(read_task(PROBLEMS), name="everyday")


def ask_problem(
    problem: Problem,
    instructions: str,
    *,
    model: str,
    options: Mapping[str, Any] | None = None,
    think: Think | None = None,
    seed: int = 0,
) -> Call:
    """The call that asks a model a problem, with the instructions as its system prompt.

    `options` are more of Ollama's; the temperature is 0 unless they say otherwise.
    """
    return Call(
        model=model,
        prompt=problem.question,
        system=instructions,
        options={"temperature": 0, **(options or {}), "seed": seed},
        think=think,
    )


def _text(cells: Mapping[str, object], column: str, place: str) -> str:
    """A value as text, "" where there is none; a number is written out."""
    value = cells.get(column)
    if value is None:
        return ""
    is_question = column.casefold() == "question"
    kinds = str if is_question else str | int | float
    if not isinstance(value, kinds) or isinstance(value, bool) or not is_text(str(value)):
        expected = "a text" if is_question else "a text or a number"
        raise ValueError(f"{place} has {value!r:.60} under {column!r}; expected {expected}")
    return str(value).strip()


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()
