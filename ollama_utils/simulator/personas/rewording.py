"""Changes of wording: rules that replace one turn of phrase by another."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ollama_utils.simulator.chance import pick
from ollama_utils.simulator.personas.surface import capitalised, lowered


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
