"""The solver: works problems out by code, and errs where its instructions do not help it enough.

Whether it is right depends on the question and the instructions alone. The difficulty of a question is the
same under all instructions, so what helps is seen without the noise of chance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from simulator.chance import digest_of, pick, share_of
from simulator.personas.advice import Advice
from simulator.personas.solving import KINDS, solve
from simulator.personas.tables import Patterns, Share, SomeTexts, Table, Text, Weight, nearest, wrong

_EXAMPLE = re.compile(
    r"(?:^|(?<=\s))(?:question|problem|q):\s*(?P<question>.+?)\s+(?:answer|a):[^\n]*",
    re.IGNORECASE | re.DOTALL,
)
_NEGATED = re.compile(r"\b(?:not|never|no|without|avoid|don['\u2019]t)\s+(?:\w+\s+){0,2}\Z", re.IGNORECASE)
_MARKED = re.compile(r"\banswer(?:\s+is\b)?[*\s]*:?[*\s]*", re.IGNORECASE)
_DRESS = " \t\r\n.*_`\"'"


class Kind(Table):
    """How well a kind of problem goes."""

    base: Weight
    """The share that is solved under plain instructions."""
    weights: dict[str, Weight] = Field(default_factory=dict)
    """What each cue adds to that share: above 0 it helps, below 0 it hurts."""


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """What counts in a system prompt."""

    cues: frozenset[str]
    examples: frozenset[str]
    """The kinds of the worked examples in it."""


class Solver(Table):
    """Solves problems."""

    cues: dict[str, Patterns]
    """What is looked for in instructions, by name."""
    kinds: dict[str, Kind]
    """By name, all of `solving.KINDS`."""
    clutter: Share
    """What each cue beyond the first `free_cues` takes from the share that is solved."""
    free_cues: Annotated[int, Field(strict=True, ge=0, le=100)]
    """How many cues may stand together without clutter."""
    example: Weight
    """What a worked example adds for problems of its kind."""
    replies: SomeTexts
    """Templates around `{answer}`."""
    unknown: Text
    """What is said to anything else."""
    advice: Advice
    """What the mutator knows to say in instructions."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in KINDS:
            if name not in self.kinds:
                raise wrong(f"kinds.{name}", "is missing")
        for name, kind in self.kinds.items():
            if name not in KINDS:
                raise wrong(f"kinds.{name}", f"is not known: {nearest(name, KINDS)}")
            for cue in kind.weights:
                if cue not in self.cues:
                    raise wrong(f"kinds.{name}.weights.{cue}", f"is not known: {nearest(cue, self.cues)}")
        if not all("{answer}" in reply for reply in self.replies):
            raise wrong("replies", "must be a list of texts with {answer}")
        return self

    def read(self, instructions: str) -> Instructions:
        """The cues and the kinds of the examples in a system prompt; a cue that is negated is none."""
        solved = [solve(found["question"]) for found in _EXAMPLE.finditer(instructions)]
        bare = _EXAMPLE.sub(" ", instructions)
        return Instructions(
            cues=frozenset(name for name, pattern in self.cues.items() if _stands_in(pattern, bare)),
            examples=frozenset(known[0] for known in solved if known),
        )

    def share(self, kind: str, instructions: Instructions, skill: float = 0.0) -> float:
        """The share of problems of a kind that are solved; below 0 none is, from 1 on all are."""
        rules = self.kinds[kind]
        return (
            skill
            + rules.base
            + sum(rules.weights.get(cue, 0.0) for cue in sorted(instructions.cues))
            + self.example * (kind in instructions.examples)
            - self.clutter * max(0, len(instructions.cues) - self.free_cues)
        )

    def reply(self, question: str, instructions: str, skill: float, digest: bytes) -> str:
        """The reply to a question, worded by the digest."""
        known = solve(question)
        if known is None:
            return self.unknown
        kind, solution = known
        solved = self.share(kind, self.read(instructions), skill) > difficulty(question)
        answer = solution.answer if solved else pick(solution.wrong, digest, "wrong answer")
        return pick(self.replies, digest, "reply").replace("{answer}", answer)

    def verdict(self, question: str, answer: str) -> bool | None:
        """Whether an answer is right; None where the question is no problem that is known."""
        known = solve(question)
        if known is None:
            return None
        said = _MARKED.split(answer)[-1].strip(_DRESS).casefold().replace(",", " ").split()
        return said == known[1].answer.casefold().replace(",", " ").split()


def difficulty(question: str) -> float:
    """A number in [0, 1) that is a question's own."""
    return share_of(digest_of(" ".join(question.split())), "difficulty")


def _stands_in(pattern: re.Pattern[str] | None, text: str) -> bool:
    return pattern is not None and any(
        not _NEGATED.search(text[: found.start()]) for found in pattern.finditer(text)
    )
