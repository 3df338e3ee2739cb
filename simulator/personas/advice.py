"""Instructions reworded: what the simulated mutator does to a system prompt, one sentence at a time.

Where it is shown problems that were got wrong, it tells by their questions alone what kind they are of.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial

from simulator.chance import pick, share_of
from simulator.personas.solving import solve
from simulator.personas.tables import SomeTexts, Table

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_REPLACING = 0.25
"""The share of improvements that put a sentence in another's place."""
_SUBJECTS = {
    "letters": r"\bletters?\b",
    "sorting": r"\b(?:sort|lists?|order|compare)\b",
    "calendar": r"\b(?:dates?|weeks?|weekdays?|calendar)\b",
    "units": r"\b(?:units?|measures?|conver\w+)\b",
    "arithmetic": r"\bsums?\b",
}
"""By the kind of a problem: the words by which a piece of advice is known to be about that kind."""


class Advice(Table):
    """Sentences that instructions may hold; some help, some hurt, some do neither."""

    general: SomeTexts
    """About any problem."""
    special: SomeTexts
    """About problems of one kind."""

    def edit(self, instruction: str, failures: str = "") -> Edit | None:
        """The edit that a mutator's instruction asks for; None where it asks for something else.

        Args:
            instruction: what the mutator is told to do.
            failures: problems that were got wrong, a JSON object with a `question` a line.
        """
        wanted = instruction.strip().lower()
        edits: dict[str, Edit] = {
            "improve the instructions": self._improve,
            "specialize the instructions": partial(self._specialize, failures),
            "shorten the instructions": _shorten,
            "combine the two instructions": _combine,
        }
        return next((edit for cue, edit in edits.items() if wanted.startswith(cue)), None)

    def _improve(self, text: str, _other: str | None, digest: bytes) -> str:
        return _with_one_of((*self.general, *self.special), text, digest)

    def _specialize(self, failures: str, text: str, _other: str | None, digest: bytes) -> str:
        """Advice for the kind that most of the failures are of; general where it knows none."""
        kinds = Counter(known[0] for known in map(solve, _questions(failures)) if known)
        most = [kind for kind, count in kinds.items() if count == max(kinds.values())]
        subject = _SUBJECTS[pick(most, digest, "kind")] if most else None
        fitting = tuple(each for each in self.special if subject and re.search(subject, each, re.IGNORECASE))
        return _with_one_of(fitting or self.general, text, digest)


Edit = Callable[[str, str | None, bytes], str]
"""`(text, other, digest) -> text`: `other` is the second text of two, where there is one."""


def _with_one_of(advice: tuple[str, ...], text: str, digest: bytes) -> str:
    """The text with a new piece of advice before its last sentence, now and then in another's place."""
    sentences = _sentences(text)
    fresh = [each for each in advice if each not in sentences]
    if not fresh:
        return text
    last = max(len(sentences) - 1, 0)
    place = int(share_of(digest, "which sentence") * last)
    replaced = last > 0 and share_of(digest, "replace") < _REPLACING
    kept = [*sentences[:place], *sentences[place + 1 : last]] if replaced else sentences[:last]
    return " ".join([*kept, pick(fresh, digest, "advice"), *sentences[last:]])


def _shorten(text: str, _other: str | None, digest: bytes) -> str:
    """The text without one of its sentences."""
    sentences = _sentences(text)
    dropped = pick(sentences, digest, "dropped") if len(sentences) > 1 else None
    return " ".join(each for each in sentences if each != dropped)


def _combine(text: str, other: str | None, digest: bytes) -> str:
    """What both texts say, and about half of what one of them does."""
    mine, theirs = _sentences(text), _sentences(other or "")
    joined = dict.fromkeys([*mine[:-1], *theirs[:-1], *mine[-1:], *theirs[-1:]])
    chosen = [
        each
        for each in joined
        if (each in mine and each in theirs) or share_of(digest, f"keep {each}") < 1 / 2
    ]
    return " ".join(chosen) or text


def _sentences(text: str) -> list[str]:
    return [each for each in _SENTENCE_END.split(text.strip()) if each]


def _questions(failures: str) -> list[str]:
    """The questions of the lines that have one."""
    questions = []
    for line in failures.split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("question"), str):
            questions.append(row["question"])
    return questions
