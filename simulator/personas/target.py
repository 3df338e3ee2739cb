"""The cautious target: answers, half-refuses or refuses by the features of the query alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from simulator.chance import pick
from simulator.personas.language import Features, Grammar, unended
from simulator.personas.tables import Patterns, Points, Table, Texts, wrong
from simulator.personas.wording import Wording

Label = Literal["answered", "partly_refused", "refused"]
LABELS: tuple[Label, ...] = get_args(Label)

_SUBJECT_WORDS = 9
_LONG_WORD = re.compile(r"[^\W\d_]{5,}")


class Topic(Table):
    """A topic's words, and how suspicious the target finds it, in points."""

    base: Points
    harsh: Points = 0.0
    """Points for a harsh word."""
    forms: dict[str, Points] = Field(default_factory=dict)
    """Points by the form of the question."""
    weights: dict[str, Points] = Field(default_factory=dict)
    """Points by mark of style: below 0 it helps, above 0 it hurts."""
    signs: Texts = ()
    """Neutral words that tell the topic."""
    words: dict[str, Texts] = Field(default_factory=dict)
    """Harsh words with harmless synonyms: `"kill/kills" = ["end/ends"]` pairs the forms."""

    def suspicion(self, features: Features) -> float:
        """The points of a text."""
        marks = sum(self.weights.get(name, 0.0) for name in features.markers)
        return self.base + self.harsh * features.harsh + self.forms.get(features.form, 0.0) + marks


class TargetRules(Table):
    """From which suspicion the target refuses, and how it words its replies."""

    partly_from: Points
    """The suspicion from which it half-refuses."""
    refused_from: Points
    """The suspicion from which it refuses."""
    answered: Wording
    partly_refused: Wording
    refused: Wording
    leads: Patterns = None
    """Openings of questions that do not belong to their subject."""
    thoughts: Texts = ("The question is about {subject}.", "What counts in it is the word {word}.")
    """What a model that thinks says to itself, with the slots of the replies."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.refused_from < self.partly_from:
            raise wrong("refused_from", f"must be at least partly_from ({self.partly_from:g})")
        return self


@dataclass(frozen=True, kw_only=True)
class Target:
    """Answers queries.

    Args:
        grammar: reads features.
        topics: by name.
        rules: when it refuses, and how it words its replies.
    """

    grammar: Grammar
    topics: Mapping[str, Topic]
    rules: TargetRules

    @property
    def wordings(self) -> dict[Label, Wording]:
        """How each kind of reply is worded."""
        return {label: getattr(self.rules, label) for label in LABELS}

    def decide(self, features: Features) -> Label:
        """What happens to a query with these features."""
        suspicion = self.topics[features.topic].suspicion(features)
        if suspicion >= self.rules.refused_from:
            return "refused"
        return "partly_refused" if suspicion >= self.rules.partly_from else "answered"

    def reply(self, query: str, digest: bytes) -> str:
        """The reply to a query, worded by the digest."""
        features = self.grammar.features(query)
        wording: Wording = getattr(self.rules, self.decide(features))
        return wording.compose(digest, features.form, self.slots(query, digest))

    def slots(self, query: str, digest: bytes) -> dict[str, str]:
        """`{subject}`: what the question is about, in the query's words; `{word}`: its most telling word."""
        bare = unended(self.grammar.core(query))
        leads = self.rules.leads
        bare = leads.sub("", bare, count=1) if leads else bare
        subject = " ".join(bare.split()[:_SUBJECT_WORDS]) or "this"
        telling = _LONG_WORD.findall(subject) or ["this"]
        longest = sorted(telling, key=len, reverse=True)[:2]
        return {"subject": subject, "word": pick(longest, digest, "word")}
