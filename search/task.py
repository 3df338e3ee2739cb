"""A task: problems, and a scorer that says what a model's reply to each is worth, as a number from 0 to 1."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import Any

from ollama_utils.types import Call, Think, is_text
from records.json_lines import MOST_QUERIES_BYTES, read_text
from records.user_file import error_line, load_function, score_of
from scorers.answers import is_right


def load_scorer(spec: str) -> Scorer:
    """The function that `FILE.py:NAME` names, with every value checked to be a number from 0 to 1.

    Raises:
        ValueError: no such file or function, it fails while it is imported, it is an async def, or it cannot
            be called with (problem, reply).
    """
    function = load_function(spec, ("problem", "reply"), "scorer")

    def scorer(problem: Problem, reply: str) -> float:
        try:
            value = function(problem, reply)
        except (Exception, SystemExit) as error:
            raise bad(problem, f"failed: {error_line(spec, error)}") from error
        score = score_of(value)
        if score is None:
            raise bad(problem, f"returned {value!r:.60}")
        return score

    def bad(problem: Problem, what: str) -> ScorerError:
        place = f"problem {problem.id!r:.60}: {' '.join(problem.question.split())!r:.60}"
        return ScorerError(f"scorer {spec!r} {what}; expected a number from 0 to 1 ({place})")

    return scorer


class ScorerError(ValueError):
    """A user's scorer raised, or did not return a number from 0 to 1."""


SEED_INSTRUCTIONS = 'Solve the problem. End with "Answer:" and the answer alone.'
"""The plain instructions that a search begins with."""

_ID_BYTES = 6
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One question of a task."""

    id: str
    """A name that no other problem of the task has."""
    question: str
    """What the model is asked, in the user's turn."""
    answer: str | None
    """The right answer; None where a scorer of one's own needs none."""
    kind: str = ""
    """What sort of problem it is; "" where nothing was said."""


Scorer = Callable[[Problem, str], float]
"""`(problem, reply) -> float`: what a reply is worth, 0 to 1."""


def exact_answer(problem: Problem, reply: str) -> float:
    """1 for a reply whose final answer is the problem's, else 0 (`scorers.answers.is_right` has the law)."""
    return float(problem.answer is not None and is_right(reply, problem.answer))


@dataclass(frozen=True, kw_only=True)
class Task:
    """Problems and their scorer."""

    name: str
    problems: tuple[Problem, ...]
    """At least one, with ids and questions all different."""
    scorer: Scorer = field(default=exact_answer)
    """What a reply to one of them is worth, 0 to 1."""

    def split(self, held_out: float, seed: int) -> tuple[Task, Task]:
        """The task to search on and the one held out, both in the order of the problems.

        Those held out have the smallest hashes of the seed and the question: the order of the problems is
        nothing to it, and a larger share only adds to them.

        Args:
            held_out: the share of problems held out, below 1, rounded to whole problems, with at least one
                on each side; 0 holds out none.
            seed: another seed gives another split.

        Raises:
            ValueError: the share is not from 0 to below 1, or there is but one problem to split.
        """
        if not 0 <= held_out < 1:
            raise ValueError(f"held_out is {held_out!r}; expected a share from 0 to below 1")
        total = len(self.problems)
        if held_out and total == 1:
            raise ValueError(
                f"held_out is {held_out!r}, but the task has 1 problem: bring more, or set held_out to 0"
            )
        count = min(max(1, round(held_out * total)), total - 1) if held_out else 0
        hashes = {problem: _hash(problem.question, seed) for problem in self.problems}
        out = set(sorted(hashes, key=hashes.__getitem__)[:count])
        kept = tuple(problem for problem in self.problems if problem not in out)
        held = tuple(problem for problem in self.problems if problem in out)
        return replace(self, problems=kept), replace(self, problems=held)


def read_task(path: Path, scorer: str | None = None) -> Task:
    """The task of a JSONL file: one object a line with `question`, and `answer` unless a scorer is given.

    Args:
        path: the file, in UTF-8. A line may also have `id` and `kind`; other keys are left alone. A question
            that an earlier line has is dropped, which the log says.
        scorer: `FILE.py:NAME`, a function `(problem, reply) -> float` from 0 to 1, which several threads
            call at once; None compares answers.

    Raises:
        ValueError: the file, a line or the scorer cannot be used; one line says why.
    """
    try:
        lines = lines_of(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"task file {str(path)!r} cannot be read: {why}; expected JSONL in UTF-8") from None
    function: Scorer = exact_answer if scorer is None else load_scorer(scorer)
    return _parse_task(path.stem, lines, str(path), function, needs_answer=scorer is None)


@cache
def bundled_task() -> Task:
    """The bundled everyday problems of five kinds: arithmetic, letters, sorting, calendar and units."""
    with resources.as_file(resources.files("search.tasks").joinpath("everyday.jsonl")) as path:
        return _parse_task("everyday", lines_of(path), path.name, exact_answer, needs_answer=True)


def lines_of(path: Path) -> list[str]:
    """The lines of a text file in UTF-8, whether or not a byte order mark stands before them.

    They end at LF, CR LF and CR alone: `str.splitlines` also cuts at U+2028, which JSON has inside texts.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, or too long.
    """
    return list(StringIO(read_text(path, MOST_QUERIES_BYTES), newline=None))


def ask_problem(
    problem: Problem,
    instructions: str,
    *,
    model: str,
    options: Mapping[str, Any] | None = None,
    think: Think | None = None,
    seed: int = 0,
) -> Call:
    """The call that puts a problem to a model, with the instructions as its system prompt.

    Args:
        problem: what is asked.
        instructions: the system prompt.
        model: as the server lists it.
        options: more of Ollama's options (`num_ctx`); the temperature is 0 unless they say otherwise.
        think: whether a thinking model thinks; None leaves it to the server.
        seed: of the call.
    """
    return Call(
        model=model,
        prompt=problem.question,
        system=instructions,
        options={"temperature": 0, **(options or {}), "seed": seed},
        think=think,
    )


def _parse_task(name: str, lines: Sequence[str], file: str, scorer: Scorer, *, needs_answer: bool) -> Task:
    problems: list[Problem] = []
    by_question: dict[str, tuple[int, str | None]] = {}
    ids: dict[str, int] = {}
    repeated = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        problem = _read_problem(line, f"{file}:{number}", needs_answer=needs_answer)
        first, answer = by_question.setdefault(problem.question, (number, problem.answer))
        if answer != problem.answer:
            raise ValueError(
                f"{file}:{number} has the question of line {first}, but another answer: leave one of them out"
            )
        if first < number:
            repeated += 1
            continue
        if ids.setdefault(problem.id, number) < number:
            raise ValueError(
                f"{file}:{number} has the id {problem.id!r} of line {ids[problem.id]}; give it its own"
            )
        problems.append(problem)
    if not problems:
        raise ValueError(f"{file} has no problem; expected one JSON object a line with question and answer")
    if repeated:
        _log.warning("%s: dropped %d of %d problems as duplicates", file, repeated, repeated + len(problems))
    return Task(name=name, problems=tuple(problems), scorer=scorer)


def _read_problem(line: str, place: str, *, needs_answer: bool) -> Problem:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place} is not JSON (column {error.colno}); expected one object a line") from None
    except (ValueError, RecursionError):  # a number too long, brackets too deep
        raise ValueError(f"{place} is not JSON that can be read; expected one object a line") from None
    if not isinstance(row, dict):
        raise ValueError(  # noqa: TRY004 - what a user's file says is a wrong value
            f"{place} is not a JSON object; expected one with question and answer"
        )
    if not isinstance(row.get("question"), str | None):
        raise ValueError(  # noqa: TRY004 - what a user's file says is a wrong value
            f"{place} has {row['question']!r:.60} under the key 'question'; expected a text"
        )
    question, answer = _text(row, "question", place), _text(row, "answer", place)
    if not question:
        raise ValueError(f"{place} has no question; expected a text under the key 'question'")
    if needs_answer and not answer:
        raise ValueError(f"{place} has no answer; expected one under the key 'answer', or name a scorer")
    return Problem(
        id=_text(row, "id", place) or blake2b(question.encode(), digest_size=_ID_BYTES).hexdigest(),
        question=question,
        answer=answer or None,
        kind=_text(row, "kind", place),
    )


def _text(row: Mapping[str, Any], key: str, place: str) -> str:
    """A value as text, "" where there is none; a number is written out."""
    value = row.get(key)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not is_text(str(value)):
        raise ValueError(f"{place} has {value!r:.60} under the key {key!r}; expected a text or a number")
    return str(value).strip()


def _hash(question: str, seed: int) -> bytes:
    """What depends on nothing but the question and the seed."""
    return blake2b(f"{seed}:{question}".encode(), digest_size=16).digest()
