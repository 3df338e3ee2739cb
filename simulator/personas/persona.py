"""A persona: the models of one world, each by the role that its name plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.names import full_name
from simulator.personas import embedding
from simulator.personas.json_schema import text_to_json, values_to_json
from simulator.personas.judge import Judge
from simulator.personas.mutator import Mutator, read_task
from simulator.personas.solver import Solver
from simulator.personas.target import Target
from simulator.personas.wording import filled
from simulator.requests import Ask

ROLES = ("target", "mutator", "judge", "all", "solver", "embedding")
"""What a model can play; an embedding model has no words, and one that plays all is target, mutator or judge
by what it is asked."""

ABILITIES = ("thinking", "tools", "vision", "insert")
"""What a model with words can do beside speaking, in Ollama's words."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a model is."""

    role: str
    """One of `ROLES`."""
    abilities: tuple[str, ...] = ()
    """Of `ABILITIES`."""
    skill: float = 0.0
    """What a solver adds to the share of problems that it solves."""


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """A reply in words."""

    text: str
    recognised: bool = True
    """False when the mutator was given an instruction that it does not know."""


@dataclass(frozen=True, kw_only=True)
class Persona:
    """All models of a persona file. Every reply is a pure function of its arguments.

    Args:
        name: the persona's.
        fingerprint: stands for all that the file says.
        models: by name.
        target: answers queries.
        mutator: rewrites queries.
        judge: labels answers.
        solver: solves problems; None where the file says nothing of them.
        dimension: numbers in an embedding.
    """

    name: str
    fingerprint: str
    models: Mapping[str, Model]
    target: Target
    mutator: Mutator
    judge: Judge
    solver: Solver | None
    dimension: int

    def reply(self, role: str, ask: Ask, digest: bytes) -> Utterance:
        """The reply of the model that plays a role.

        Args:
            role: one of `ROLES` other than `embedding`.
            ask: the question.
            digest: stands for all that decides the reply; chance is drawn from it.
        """
        if role == "all":
            role = self.role_in(ask)
        if role == "judge":
            return Utterance(text=values_to_json(self._judgement(ask, digest), ask.format))
        if role == "mutator":
            text, recognised = self.mutator.reply(ask.prompt, digest)
        elif role == "solver" and self.solver is not None:
            text, recognised = self.solver.reply(ask.prompt, ask.system, self._skill(ask.model), digest), True
        else:
            text, recognised = self.target.reply(_untagged(ask.prompt), digest), True
        if ask.format is not None:
            text = text_to_json(text, ask.format)
        return Utterance(text=text, recognised=recognised)

    def _judgement(self, ask: Ask, digest: bytes) -> dict[str, Any]:
        """The judge's values; a score that is asked for alone goes by whether a known problem is solved."""
        right = None
        if self.solver is not None and _asks_score_alone(ask.format):
            right = self.solver.verdict(*self.judge.case(ask.prompt))
        return (
            self.judge.reply(ask.prompt, digest) if right is None else self.judge.grade(digest, right=right)
        )

    def _skill(self, model: str) -> float:
        return next(
            (each.skill for name, each in self.models.items() if full_name(name) == full_name(model)), 0
        )

    def role_in(self, ask: Ask) -> str:
        """The role that a question itself gives to a model that plays all of them.

        A tagged answer or rewording under a format is judged, a tagged query under an instruction that the
        mutator knows is rewritten, and anything else is answered.
        """
        if ask.format is not None and self.judge.is_asked(ask.prompt):
            return "judge"
        return "mutator" if self.mutator.is_asked(ask.prompt) else "target"

    def thoughts(self, ask: Ask, digest: bytes) -> str:
        """What a model thinks before it replies; the same whatever it plays."""
        slots = self.target.slots(_untagged(ask.prompt), digest)
        return " ".join(filled(sentence, slots) for sentence in self.target.thoughts)

    def embed(self, text: str) -> list[float]:
        """A vector of length 1 with `dimension` numbers."""
        return embedding.embed(text, self.dimension)


def _asks_score_alone(schema: object) -> bool:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return isinstance(properties, dict) and set(properties) == {"score"}


def _untagged(prompt: str) -> str:
    return read_task(prompt).query if "<query>" in prompt else prompt
