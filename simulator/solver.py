"""The solver: knows the bundled problems and sums of two numbers, and errs by its instructions.

Whether it is right depends on the question and the instructions alone. The difficulty of a question
is the same under all instructions, so what helps is seen without the noise of chance. The mutator
rewords instructions one sentence at a time, of the world's advice.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from operator import add, mul, sub, truediv
from typing import NamedTuple

from simulator.chance import digest_of, pick, share_of
from simulator.prompts import Task
from simulator.settings import PROBLEMS
from simulator.world_file import Solver

_SUM = re.compile(r"(?<![\w./-])(-?\d+(?:\.\d+)?)\s*([-+*/×÷−])\s*(\d+(?:\.\d+)?)(?!\w|[-/.]\d)")
_OPERATIONS = dict(zip("+-−*×/÷", (add, sub, sub, mul, mul, truediv, truediv), strict=True))
_EXAMPLE = re.compile(
    r"(?:^|(?<=\s))(?:question|problem|q):\s*(?P<question>.+?)\s+(?:answer|a):[^\n]*",
    re.IGNORECASE | re.DOTALL,
)
_NEGATED = re.compile(
    r"\b(?:not|never|no|without|avoid|don['’]t)\s+(?:\w+\s+){0,2}\Z", re.IGNORECASE
)
_MARKED = re.compile(r"\banswer(?:\s+is\b)?[*\s]*:?[*\s]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_EDITS = ("improve the", "specialize the", "shorten the", "combine the two")
"""What a mutator may be asked to do to instructions."""
_REPLACING = 0.25
"""The share of improvements that put a sentence in another's place."""


class Problem(NamedTuple):
    """A problem that is known."""

    kind: str
    answer: str


def problem(question: str) -> Problem | None:
    """What is known of a question; None where it is no such problem."""
    plain = _plain(question)
    for bundled, known in _bundled().items():
        if bundled in plain:  # a phrase that a mutation added changes no problem
            return known
    found = _SUM.search(question)
    if found is None or (found[2] in "/÷" and float(found[3]) == 0):
        return None
    return Problem("arithmetic", f"{_OPERATIONS[found[2]](float(found[1]), float(found[3])):.10g}")


def solve(rules: Solver, question: str, instructions: str, skill: float, digest: bytes) -> str:
    """The reply to a question, worded by the digest."""
    known = problem(question)
    if known is None:
        return rules.unknown
    right = share(rules, known.kind, instructions, skill) > difficulty(question)
    answer = known.answer if right else _wrong(known, digest)
    return pick(rules.replies, digest, "reply").replace("{answer}", answer)


def verdict(question: str, answer: str) -> bool | None:
    """Whether an answer is right; None where the question is no problem that is known."""
    known = problem(question)
    return None if known is None else _plain(_MARKED.split(answer)[-1]) == _plain(known.answer)


def share(rules: Solver, kind: str, instructions: str, skill: float = 0.0) -> float:
    """The share of problems of a kind that are solved under a system prompt.

    A cue that is negated ("do not guess") is none; a worked example counts for problems of its
    kind.
    """
    bare = _EXAMPLE.sub(" ", instructions)
    cues = [name for name, pattern in rules.cues.items() if _stands_in(pattern, bare)]
    examples = [problem(each["question"]) for each in _EXAMPLE.finditer(instructions)]
    weights = rules.kinds[kind]
    solved = skill + weights["base"] + sum(weights.get(cue, 0.0) for cue in cues)
    solved += rules.example * any(each is not None and each.kind == kind for each in examples)
    return solved - rules.clutter * max(0, len(cues) - rules.free_cues)


def difficulty(question: str) -> float:
    """A number in [0, 1) that is a question's own."""
    return share_of(digest_of(" ".join(question.split())), "difficulty")


def _wrong(known: Problem, digest: bytes) -> str:
    """Another number, or the answer to another problem of the kind."""
    if re.fullmatch(r"-?\d+", known.answer):
        return str(int(known.answer) + pick((-10, -2, -1, 1, 2, 10), digest, "wrong answer"))
    others = {each.answer for each in _bundled().values() if each.kind == known.kind}
    options = sorted(others - {known.answer}) or [f"not {known.answer}"]
    return pick(options, digest, "wrong answer")


@cache
def _bundled() -> dict[str, Problem]:
    """The problems of the bundled task by their questions."""
    lines = PROBLEMS.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return {_plain(row["question"]): Problem(row["kind"], row["answer"]) for row in rows}


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[\w.]+", text.casefold())).rstrip(".")


def _stands_in(pattern: re.Pattern[str], text: str) -> bool:
    return any(not _NEGATED.search(text[: found.start()]) for found in pattern.finditer(text))


def edits(task: Task) -> str | None:
    """What a mutator's task asks to be done to instructions; None where it is about a query."""
    asked = task.instruction.strip().lower()
    return next((verb for verb in _EDITS if asked.startswith(f"{verb} instructions")), None)


def edit_instructions(rules: Solver, task: Task, digest: bytes) -> str | None:
    """The instructions that a mutator's task holds, edited; None where it is about a query.

    Shown problems that were got wrong, the mutator tells their kind by their questions.
    """
    mine = _sentences(task.query)
    match edits(task):
        case "improve the":
            special = [each for some in rules.special.values() for each in some]
            return _with_one_of([*rules.general, *special], task.query, digest)
        case "specialize the":
            known = [found for each in _questions(task.failures) if (found := problem(each))]
            kinds = Counter(found.kind for found in known)
            most = [kind for kind, count in kinds.items() if count == max(kinds.values())]
            fitting = rules.special.get(pick(most, digest, "kind"), ()) if most else ()
            return _with_one_of(fitting or rules.general, task.query, digest)
        case "shorten the":
            dropped = pick(mine, digest, "dropped") if len(mine) > 1 else None
            return " ".join(each for each in mine if each != dropped)
        case "combine the two":
            theirs = _sentences(task.other or "")
            common = {*mine} & {*theirs}
            joined = dict.fromkeys([*mine[:-1], *theirs[:-1], *mine[-1:], *theirs[-1:]])
            kept = [each for each in joined if each in common or share_of(digest, each) < 1 / 2]
            return " ".join(kept) or task.query
    return None


def _with_one_of(advice: Sequence[str], text: str, digest: bytes) -> str:
    """The text with another piece of advice, now and then in the place of one of its own."""
    sentences = _sentences(text)
    fresh = [each for each in advice if each not in sentences]
    if not fresh:
        return text
    last = max(len(sentences) - 1, 0)
    place = int(share_of(digest, "which sentence") * last)
    replaced = last > 0 and share_of(digest, "replace") < _REPLACING
    kept = [*sentences[:place], *sentences[place + 1 : last]] if replaced else sentences[:last]
    return " ".join([*kept, pick(fresh, digest, "advice"), *sentences[last:]])


def _sentences(text: str) -> list[str]:
    return [each for each in _SENTENCE_END.split(text.strip()) if each]


def _questions(failures: str) -> list[str]:
    """The questions of the lines that have one."""
    questions = []
    for line in failures.splitlines():
        try:
            questions.append(str(json.loads(line)["question"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return questions
