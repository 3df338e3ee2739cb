"""Sentences drawn from lists: varied wording from a few dozen templates.

Changes of wording: rules that replace one turn of phrase by another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.chance import digest_of, pick
from simulator.personas.language import capitalised, lowered

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


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A turn of phrase and what may stand in its place."""

    pattern: re.Pattern[str]
    replacements: tuple[str, ...]
    """As in `re.sub`: `\\1` is the first group; a replacement equal to what was found is not chosen."""


@dataclass(frozen=True, kw_only=True)
class Rewording:
    """Rules, of which the first that fits is applied, or every one that fits."""

    rules: tuple[Rule, ...]
    every: bool

    def apply(self, text: str, openers: frozenset[str], digest: bytes) -> str:
        """The text reworded; the text itself where no rule fits."""
        for rule in self.rules:
            match = rule.pattern.search(text)
            options = _options(rule, match) if match else ()
            if match and options:
                text = _replaced(text, match, pick(options, digest, rule.pattern.pattern), openers)
                if not self.every:
                    break
        return text


def _options(rule: Rule, match: re.Match[str]) -> tuple[str, ...]:
    # `expand` parses its template anew every time.
    options = (match.expand(each) if "\\" in each else each for each in rule.replacements)
    return tuple(option for option in options if option.lower() != match[0].lower())


def _replaced(text: str, match: re.Match[str], option: str, openers: frozenset[str]) -> str:
    """The text with the match replaced; what stood first keeps its capital."""
    before, rest = text[: match.start()], text[match.end() :]
    if not before.strip() and (match[0][:1].isupper() or not option):
        return capitalised((option + rest).lstrip())
    if option.endswith(": "):
        rest = lowered(rest, openers)
    return before + option + rest
