"""Replaces the words of a lexicon in a text: inflected and capitalised as they stood, articles kept right."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

VERB_FORMS = ("base", "third", "past", "participle", "ing")

_SIBILANT = re.compile(r"(?:s|x|z|ch|sh)$")
_SILENT_E = re.compile(r"(?<=[^eoy])e$")
_CONSONANT_Y = re.compile(r"(?<=[^aeiou])y$")


def verb_forms(verb: str, irregular: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The forms of a verb in the order of `VERB_FORMS`; of several words the first is inflected.

    Args:
        verb: The base form: `kill`, `blow up`.
        irregular: Base form -> third person, past, participle and -ing form.
    """
    head, space, rest = verb.partition(" ")
    forms = (head, *irregular[head]) if head in irregular else _regular(head)
    return tuple(form + space + rest for form in forms)


def plural(noun: str, irregular: Mapping[str, str]) -> str:
    """The plural of a noun; of several words the last is inflected."""
    return irregular.get(noun) or _with_s(noun)


def with_article(article: str, word: str) -> str:
    """`a` or `an` as the word needs it, capitalised as the article was; by the word's first letter."""
    fitting = "an" if word[0].lower() in "aeiou" and not word.lower().startswith(("use", "uni")) else "a"
    return fitting.capitalize() if article[0].isupper() else fitting


def _regular(verb: str) -> tuple[str, ...]:
    past = _CONSONANT_Y.sub("i", verb).removesuffix("e") + "ed"
    ing = (verb[:-2] + "y" if verb.endswith("ie") else _SILENT_E.sub("", verb)) + "ing"
    return verb, _with_s(verb), past, past, ing


def _with_s(word: str) -> str:
    if _CONSONANT_Y.search(word):
        return word[:-1] + "ies"
    return word + ("es" if _SIBILANT.search(word) else "s")


Sense = Literal["verb", "noun"]
Entry = tuple[str, Sense | None, tuple[str, ...]]
"""A word as it appears, what it is there (None: it fits anywhere), and what may stand in its place."""

_BEFORE_A_NOUN = re.compile(
    r"\b(?:an?|the|my|your|his|her|its|our|their|these|those|some|any|every|each|no|another|of|for|from|with|without|"
    r"about|against|during)\s+\Z",
    re.IGNORECASE,
)
_RIGHT_BEFORE_A_VERB = re.compile(
    r"\b(?:to|not|i|you|we|they|please|never|can't|don't|cannot)\s+\Z", re.IGNORECASE
)
_BEFORE_A_VERB = re.compile(
    r"\b(?:to|not|i|you|we|they|please|never|can't|don't|cannot|who|can|could|will|won't|would|should|shouldn't|must|may|"
    r"might|do|does|did)(?:\s+[\w']+){0,3}\s+\Z",
    re.IGNORECASE,
)
_SENTENCE_START = re.compile(r"(?:\A|[.!?:;,\n])\s*\Z")
_CODE = r"`[^`\n]*`"
_ARTICLE_AT_END = re.compile(r"\b(an?)(\s+)\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Lexicon:
    """What may stand in the place of each word."""

    words: Mapping[str, Mapping[Sense | None, tuple[str, ...]]]
    """Lower-case word or phrase as it appears -> its sense -> replacements in the same form."""
    pattern: re.Pattern[str]
    """Finds the words, the longest first; code between backticks is found whole, so that it stays."""

    def replace(self, text: str, pick: float) -> str:
        """The text with every word of the lexicon replaced.

        Args:
            text: Any text.
            pick: Which of a word's replacements to take, as a fraction in [0, 1) of their list: the same word
                gets the same one in all its forms.
        """
        pieces: list[str] = []
        end = 0
        for match in self.pattern.finditer(text):
            before = text[end : match.start()]
            end = match.end()
            options = self._options(match[0], text[max(0, match.start() - 60) : match.start()])
            if options:
                word = options[int(pick * len(options))]
                pieces += [_fit_article(before, word), _capitalised_as(match[0], word)]
            else:
                pieces += [before, match[0]]
        return "".join([*pieces, text[end:]])

    def _options(self, found: str, before: str) -> tuple[str, ...]:
        """The replacements that fit what the word is here: a noun after `the`, a verb after `to`."""
        if found[0].isupper() and not found.isupper() and not _SENTENCE_START.search(before):
            return ()  # a name: Die Hard, World War II
        senses = self.words.get(" ".join(found.lower().replace("\u2019", "'").split()), {})
        fitting = (senses[sense] for sense in (None, *_senses(before)) if sense in senses)
        return next(fitting, ())


@functools.cache
def lexicon() -> Lexicon:
    """The shipped lexicon, `synonyms.toml`."""
    return parse(resources.files("mutators").joinpath("synonyms.toml").read_text(encoding="utf-8"))


def parse(toml: str) -> Lexicon:
    """A lexicon from its TOML text; the shipped file's head comment says what stands in it."""
    words: dict[str, dict[Sense | None, tuple[str, ...]]] = {}
    for word, sense, replacements in _entries(tomllib.loads(toml)):
        words.setdefault(word, {}).setdefault(sense, replacements)
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    alternatives = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in longest_first)
    pattern = re.compile(rf"{_CODE}|(?<![\w-])(?:{alternatives})(?![\w(-])", re.IGNORECASE)
    return Lexicon(words, pattern)


def _entries(tables: Mapping[str, Any]) -> Iterator[Entry]:
    """Every form of every word, phrases first."""
    for phrase, replacements in tables["phrases"].items():
        yield phrase, None, tuple(replacements)
    for verb, replacements in tables["verbs"].items():
        inflected = [verb_forms(each, tables["irregular"]) for each in replacements]
        for form, word in enumerate(verb_forms(verb, tables["irregular"])):
            sense: Sense | None = None if VERB_FORMS[form] == "ing" else "verb"
            yield word, sense, tuple(forms[form] for forms in inflected)
    for noun, replacements in tables["nouns"].items():
        yield noun, "noun", tuple(replacements)
        many = tuple(plural(each, tables["plurals"]) for each in replacements)
        yield plural(noun, tables["plurals"]), "noun", many


def _senses(before: str) -> tuple[Sense, ...]:
    """What a word can be after this text, the likelier first: a guess from the few words before it."""
    if _BEFORE_A_NOUN.search(before):
        return ("noun",)
    if _RIGHT_BEFORE_A_VERB.search(before):
        return ("verb",)
    if _SENTENCE_START.search(before) or _BEFORE_A_VERB.search(before):
        return ("verb", "noun")
    return ("noun", "verb")


def _fit_article(before: str, word: str) -> str:
    """The text before a replacement, with `a` and `an` as the replacement needs it."""
    return _ARTICLE_AT_END.sub(lambda match: with_article(match[1], word) + match[2], before)


def _capitalised_as(found: str, word: str) -> str:
    if len(found) > 1 and found.isupper():
        return word.upper()
    return word[0].upper() + word[1:] if found[0].isupper() else word
