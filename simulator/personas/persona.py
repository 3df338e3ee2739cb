"""A persona: the models of one world, each by the role that its name plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import model_validator

from simulator.fences import without_boundaries
from simulator.names import full_name
from simulator.personas import embedding
from simulator.personas.json_schema import text_to_json, values_to_json
from simulator.personas.judge import Judge
from simulator.personas.mutator import Mutator, read_task
from simulator.personas.solver import Solver
from simulator.personas.tables import Table, Weight, wrong
from simulator.personas.target import Target
from simulator.personas.wording import filled
from simulator.requests import Question

Role = Literal["target", "mutator", "judge", "all", "solver", "embedding"]
"""What a model can play; an embedding model has no words, and one that plays all is target, mutator or judge
by its prompt."""


class Model(Table):
    """What a model is: in a file its role alone, or a table."""

    role: Role
    abilities: tuple[Literal["thinking", "tools", "vision", "insert"], ...] = ()
    """What the file says that a model with words can do beside speaking; only thinking is played."""
    skill: Weight | None = None
    """What a solver adds to the share of problems that it solves."""

    @model_validator(mode="before")
    @classmethod
    def _read_role(cls, value: Any) -> Any:  # noqa: ANN401 - TOML holds anything
        return {"role": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.abilities and self.role == "embedding":
            raise wrong("abilities", "must be left out: an embedding model has no words")
        if self.skill is not None and self.role != "solver":
            raise wrong("skill", "must be left out: only a solver has one")
        return self


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """A reply in words."""

    text: str
    recognised: bool = True
    """False when the mutator was given an instruction that it does not know."""
    is_rewording: bool = False
    """Whether the mutator said it after worked examples."""


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

    def reply(self, role: str, question: Question, digest: bytes) -> Utterance:
        """The reply of the model that plays a role.

        Args:
            role: a `Role` other than `embedding`.
            question: as it came.
            digest: stands for all that decides the reply; chance is drawn from it.
        """
        if role == "all":
            role = self.role_in(question)
        if role == "judge":
            return Utterance(text=values_to_json(self._judgement(question, digest), question.format))
        if role == "mutator":
            text, recognised = self.mutator.reply(_task(question), digest, shown=bool(question.history))
        elif role == "solver" and self.solver is not None:
            text, recognised = (
                self.solver.reply(question.prompt, question.system, self._skill(question.model), digest),
                True,
            )
        else:
            text, recognised = self.target.reply(_untagged(question.prompt), digest), True
        if question.format is not None:
            text = text_to_json(text, question.format)
        is_rewording = role == "mutator" and bool(question.history)
        return Utterance(text=text, recognised=recognised, is_rewording=is_rewording)

    def _judgement(self, question: Question, digest: bytes) -> dict[str, Any]:
        """The judge's values; a score that is asked for alone goes by whether a known problem is solved."""
        right = None
        if self.solver is not None and _asks_score_alone(question.format):
            right = self.solver.verdict(*self.judge.case(question.prompt))
        return (
            self.judge.reply(question.prompt, digest)
            if right is None
            else self.judge.grade(digest, right=right)
        )

    def _skill(self, model: str) -> float:
        found = (each.skill for name, each in self.models.items() if full_name(name) == full_name(model))
        return next(found, None) or 0.0

    def role_in(self, question: Question) -> str:
        """The role that a question itself gives to a model that plays all of them.

        A tagged answer or rewording under a format is judged, a tagged query under an instruction that the
        mutator knows is rewritten, and anything else is answered.
        """
        if question.format is not None and self.judge.is_asked(question.prompt):
            return "judge"
        return "mutator" if self.mutator.is_asked(_task(question)) else "target"

    def thoughts(self, question: Question, digest: bytes) -> str:
        """What a model thinks before it replies; the same whatever it plays."""
        slots = self.target.slots(_untagged(question.prompt), digest)
        return " ".join(filled(sentence, slots) for sentence in self.target.rules.thoughts)

    def embed(self, text: str) -> list[float]:
        """A vector of length 1 with `dimension` numbers."""
        return embedding.embed(text, self.dimension)


def _asks_score_alone(schema: object) -> bool:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return isinstance(properties, dict) and set(properties) == {"score"}


def _task(question: Question) -> str:
    """A mutator's prompt; its instruction may be the system prompt."""
    return f"{question.system}\n\n{question.prompt}" if question.system else question.prompt


def _untagged(prompt: str) -> str:
    return read_task(prompt).query if "<query>" in without_boundaries(prompt) else prompt
