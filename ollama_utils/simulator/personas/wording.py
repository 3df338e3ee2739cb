"""Sentences drawn from lists: varied wording from a few dozen templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ollama_utils.simulator.chance import digest_of, pick

Sentences = Mapping[str, tuple[str, ...]]
"""The sentences of one list for each form of question; those under "" are for all forms."""

_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Wording:
    """How one kind of reply is worded."""

    patterns: tuple[tuple[str, ...], ...]
    """Each a row of lists' names: one sentence of each makes a reply."""
    sentences: Mapping[str, Sentences]
    decisive: tuple[str, ...]
    """The lists whose sentences tell this kind of reply from the others."""

    def compose(self, digest: bytes, form: str, slots: Mapping[str, str]) -> str:
        """A reply; the digest decides between patterns and sentences, `slots` fill what is in braces."""
        row = pick(self.patterns, digest, "pattern")
        chosen = (
            pick(self._sentences(name, form), digest_of(digest.hex(), place), name)
            for place, name in enumerate(row)
        )
        return filled(" ".join(chosen), slots)

    def fragments(self) -> tuple[str, ...]:
        """The fixed part of each decisive sentence, by which it is known: the longest run without a slot."""
        lists = (sentences for name in self.decisive for sentences in self.sentences[name].values())
        return tuple(longest_part(sentence) for sentences in lists for sentence in sentences)

    def _sentences(self, name: str, form: str) -> tuple[str, ...]:
        lists = self.sentences[name]
        return lists.get(form) or lists[""]


def filled(template: str, slots: Mapping[str, str]) -> str:
    """The template with its slots filled; an unknown one stays."""
    return _SLOT.sub(lambda match: slots.get(match[1], match[0]), template)


def longest_part(template: str) -> str:
    """The longest part of a template between slots."""
    return max((part.strip() for part in _SLOT.split(template)[::2]), key=len)
