"""Replaces the words of `synonyms.toml` in a text, with their inflection and capitals."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Literal

Sense = Literal["verb", "noun", "any"]
"""The part of speech that a word is used as; `any` fits everywhere."""

_CODE = r"`[^`\n]*`"
_ARTICLE_AT_END = re.compile(r"\b(an?)(\s+)\Z", re.IGNORECASE)
_SENTENCE_START = re.compile(r"(?:\A|[.!?:;,\n])\s*\Z")
_RIGHT_BEFORE_A_VERB = re.compile(
    r"\b(?:to|not|i|you|we|they|please|never|can't|don't|cannot)\s+\Z", re.IGNORECASE
)
_BEFORE_A_NOUN = re.compile(
    r"\b(?:an?|the|my|your|his|her|its|our|their|these|those|some|any|every|each|no|another|of|for"
    r"|from|with|without|about|against|during)\s+\Z",
    re.IGNORECASE,
)
_BEFORE_A_VERB = re.compile(
    r"\b(?:to|not|i|you|we|they|please|never|can't|don't|cannot|who|can|could|will|won't|would"
    r"|should|shouldn't|must|may|might|do|does|did)(?:\s+[\w']+){0,3}\s+\Z",
    re.IGNORECASE,
)


def replace_words(text: str, pick: float) -> str:
    """The text with every word of the lexicon replaced, except in code and names.

    Args:
        text: any text.
        pick: which of a word's replacements to take, as a fraction in [0, 1) of their list: the
            same word gets the same one in all its forms.
    """
    words, pattern = _lexicon()
    pieces: list[str] = []
    end = 0
    for match in pattern.finditer(text):
        before, found = text[end : match.start()], match[0]
        end = match.end()
        near = text[max(0, match.start() - 60) : match.start()]
        is_name = found.istitle() and not _SENTENCE_START.search(near)  # Die Hard, World War II
        plain = " ".join(found.lower().replace("\u2019", "'").split())
        senses = {} if is_name else words.get(plain, {})
        options = next((senses[each] for each in _senses(near) if each in senses), ())
        if options:
            word = options[int(pick * len(options))]
            pieces += [_fit_article(before, word), _capitalised_as(found, word)]
        else:
            pieces += [before, found]
    return "".join([*pieces, text[end:]])


@functools.cache
def _lexicon() -> tuple[Mapping[str, Mapping[Sense, Sequence[str]]], re.Pattern[str]]:
    """Each word as it appears, with its replacements in the same form, and what finds them all.

    The longest is found first; code between backticks is found whole, so that it stays.
    """
    file = resources.files("mutators").joinpath("synonyms.toml")
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    words: dict[str, dict[Sense, Sequence[str]]] = {}

    def add(word: str, sense: Sense, replacements: Sequence[str]) -> None:
        words.setdefault(word, {}).setdefault(sense, replacements)

    for phrase, replacements in tables["phrases"].items():
        add(phrase, "any", replacements)
    for verb, replacements in tables["verbs"].items():
        forms = [_verb_forms(each, tables["irregular"]) for each in (verb, *replacements)]
        for word, *others in zip(*forms, strict=True):
            add(word, "any" if word == forms[0][-1] else "verb", others)
    for noun, replacements in tables["nouns"].items():
        add(noun, "noun", replacements)
        plurals = tables["plurals"]
        many, *others = (plurals.get(each) or _with_s(each) for each in (noun, *replacements))
        add(many, "noun", others)
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    alternatives = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in longest_first)
    return words, re.compile(rf"{_CODE}|(?<![\w-])(?:{alternatives})(?![\w(-])", re.IGNORECASE)


def _verb_forms(verb: str, irregular: Mapping[str, Sequence[str]]) -> list[str]:
    """Base, third person, past, participle, -ing form; of several words the first is inflected."""
    head, space, rest = verb.partition(" ")
    past = re.sub(r"(?<=[^aeiou])y$", "i", head).removesuffix("e") + "ed"
    stem = head[:-2] + "y" if head.endswith("ie") else re.sub(r"(?<=[^eoy])e$", "", head)
    forms = irregular.get(head, [_with_s(head), past, past, stem + "ing"])
    return [form + space + rest for form in (head, *forms)]


def _with_s(word: str) -> str:
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(?:s|x|z|ch|sh)$", word) else "s")


def _senses(before: str) -> tuple[Sense, ...]:
    """What a word can be after this text, the likelier first: a guess from the words before it."""
    if _BEFORE_A_NOUN.search(before):
        return ("any", "noun")
    if _RIGHT_BEFORE_A_VERB.search(before):
        return ("any", "verb")
    if _SENTENCE_START.search(before) or _BEFORE_A_VERB.search(before):
        return ("any", "verb", "noun")
    return ("any", "noun", "verb")


def _fit_article(before: str, word: str) -> str:
    """The text before a replacement, with `a` or `an` as its first letter needs it."""
    fitting = "an" if word[0] in "aeiou" and not word.startswith(("use", "uni")) else "a"

    def fit(match: re.Match[str]) -> str:
        return (fitting.capitalize() if match[1][0].isupper() else fitting) + match[2]

    return _ARTICLE_AT_END.sub(fit, before)


def _capitalised_as(found: str, word: str) -> str:
    if len(found) > 1 and found.isupper():
        return word.upper()
    return word[0].upper() + word[1:] if found[0].isupper() else word
