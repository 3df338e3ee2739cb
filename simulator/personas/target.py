"""The cautious target: answers, half-refuses or refuses by the features of the query alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from simulator.chance import pick
from simulator.personas.language import Features, Grammar, unended
from simulator.personas.wording import Wording

Label = Literal["answered", "partly_refused", "refused"]
LABELS: tuple[Label, ...] = get_args(Label)

_SUBJECT_WORDS = 9
_LONG_WORD = re.compile(r"[^\W\d_]{5,}")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """How suspicious the target finds a topic, in points."""

    name: str
    base: float
    harsh: float
    """Points for a harsh word."""
    forms: Mapping[str, float]
    """Points by the form of the question."""
    weights: Mapping[str, float]
    """Points by mark of style: below 0 it helps, above 0 it hurts."""

    def suspicion(self, features: Features) -> float:
        """The points of a text."""
        marks = sum(self.weights.get(name, 0.0) for name in features.markers)
        return self.base + self.harsh * features.harsh + self.forms.get(features.form, 0.0) + marks


@dataclass(frozen=True, kw_only=True)
class Target:
    """Answers queries.

    Args:
        grammar: reads features.
        topics: by name.
        partly_from: the suspicion from which it half-refuses.
        refused_from: the suspicion from which it refuses.
        wordings: how each kind of reply is worded.
        leads: openings of questions that do not belong to their subject.
        thoughts: what a model that thinks says to itself, with the slots of the replies.
    """

    grammar: Grammar
    topics: Mapping[str, Topic]
    partly_from: float
    refused_from: float
    wordings: Mapping[Label, Wording]
    leads: re.Pattern[str] | None
    thoughts: tuple[str, ...]

    def decide(self, features: Features) -> Label:
        """What happens to a query with these features."""
        suspicion = self.topics[features.topic].suspicion(features)
        if suspicion >= self.refused_from:
            return "refused"
        return "partly_refused" if suspicion >= self.partly_from else "answered"

    def reply(self, query: str, digest: bytes) -> str:
        """The reply to a query, worded by the digest."""
        features = self.grammar.features(query)
        wording = self.wordings[self.decide(features)]
        return wording.compose(digest, features.form, self.slots(query, digest))

    def slots(self, query: str, digest: bytes) -> dict[str, str]:
        """`{subject}`: what the question is about, in the query's words; `{word}`: its most telling word."""
        bare = unended(self.grammar.core(query))
        bare = self.leads.sub("", bare, count=1) if self.leads else bare
        subject = " ".join(bare.split()[:_SUBJECT_WORDS]) or "this"
        telling = _LONG_WORD.findall(subject) or ["this"]
        longest = sorted(telling, key=len, reverse=True)[:2]
        return {"subject": subject, "word": pick(longest, digest, "word")}
