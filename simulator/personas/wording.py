"""Words drawn from lists: replies made of templates, and rules that replace one turn of phrase by another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from simulator.chance import digest_of, pick
from simulator.personas.language import capitalised, lowered
from simulator.personas.tables import Flag, Pattern, SomeTexts, Table, wrong


def _by_form(sentences: object) -> object:
    return {"": sentences} if isinstance(sentences, list) else sentences


Sentences = Annotated[dict[str, SomeTexts], BeforeValidator(_by_form)]
"""The sentences of one list for each form of question; those under "" are for all forms."""

_SLOT = re.compile(r"\{(\w+)\}")


class Wording(Table):
    """How one kind of reply is worded."""

    patterns: SomeTexts
    """Each the names of lists, with spaces between them: one sentence of each makes a reply."""
    decisive: SomeTexts
    """The lists whose sentences tell this kind of reply from the others."""
    sentences: dict[str, Sentences]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for key in ("patterns", "decisive"):
            rows: tuple[str, ...] = getattr(self, key)
            if not {name for row in rows for name in row.split()} <= set(self.sentences):
                raise wrong(key, f"must be made of the lists' names ({', '.join(self.sentences)})")
        return self

    def compose(self, digest: bytes, form: str, slots: Mapping[str, str]) -> str:
        """A reply; the digest decides between patterns and sentences, `slots` fill what is in braces."""
        row = pick(self.patterns, digest, "pattern").split()
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


class Rule(Table):
    """A turn of phrase and what may stand in its place."""

    pattern: Pattern = Field(alias="from")
    replacements: Annotated[tuple[str, ...], Field(min_length=1, alias="to")]
    """As in `re.sub`: `\\1` is the first group; a replacement equal to what was found is not chosen."""


class Rewording(Table):
    """Rules, of which the first that fits is applied, or every one that fits."""

    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]
    every: Flag = False

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
