"""English verb forms and plurals, as far as a lexicon of synonyms needs them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
