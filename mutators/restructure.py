"""The mutators that rebuild a sentence by rule: another form of asking, the passive voice, fewer words.

Each knows the common shapes of short English questions and requests; any other text stays as it is, which an
episode counts as `unchanged`. They are not among `DEFAULT_MUTATORS`: name them, where the mutator is a model
that rewords badly, or none is to be asked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from mutators.mutator import Mutator, by_rule

Shape = tuple[re.Pattern[str], Callable[[re.Match[str]], str | None]]
"""What a sentence looks like, and the sentence that is made of it; None where it cannot be made."""

_I = {"i": "I", "you": "you", "we": "we", "one": "one", "they": "they", "he": "he", "she": "she", "it": "it"}
_PRONOUN = r"(?P<who>i|you|we|one|they|he|she|it|someone|somebody)"
_MODAL = r"(?P<modal>can|could|may|might|must|should|would|will)"
_NOT_IN_OBJECT = re.compile(
    r"[,;:]|\b(?:to|so|that|which|who|when|while|if|because|and|or|but|until|before|after|without|by|as|like|"
    r"i|i'm|you|we|they|he|she|it|from|instead|myself|yourself|with|into|using|than)\b",
    re.IGNORECASE,
)
_FILLERS = re.compile(
    r"\b(?:please|kindly|actually|basically|really|simply|possibly|exactly|if possible|if you can)\b,?\s*",
    re.IGNORECASE,
)
_SECOND_QUESTION = re.compile(
    r"(?:,| and) (?:how|what|why|where|when|who|which|is|are|do|does|can|should)\b", re.IGNORECASE
)
_LEAD_INS = re.compile(
    r"\A(?:(?:hello|hi|hey|excuse me|thanks|thank you)[,.!]*\s+)?"
    r"(?:(?:can|could|would|will) you (?:please )?(?:tell|explain to|show|help) me(?: to understand)?|"
    r"(?:please )?(?:tell|explain to|show) me|i(?:'d| would) like to know|i want to know|i wonder|"
    r"i(?:'m| am) wondering|do you know)\s+(?=(?:how|what|why|where|when|who|which|whether|if)\b)",
    re.IGNORECASE,
)


def _shape(pattern: str) -> Callable[[Callable[[re.Match[str]], str | None]], Shape]:
    compiled = re.compile(rf"\A{pattern}\s*\?\Z", re.IGNORECASE)
    return lambda make: (compiled, make)


def _reshaped(query: str, shapes: Sequence[Shape]) -> str:
    """What the first shape that the query has makes of it; the query where none has."""
    bare = query.strip()
    for pattern, make in shapes:
        if (match := pattern.match(bare)) and (made := make(match)):
            return made[0].upper() + made[1:]
    return query


def _who(match: re.Match[str]) -> str:
    return _I.get(match["who"].lower(), match["who"].lower())


@_shape(rf"how (?:(?:do|can|could|should|would|might) {_PRONOUN}|to) (?P<rest>(?:best )?[a-z].*)")
def _how_to(match: re.Match[str]) -> str | None:
    if (match["who"] or "i").lower() in {"they", "he", "she", "it"} or _SECOND_QUESTION.search(match["rest"]):
        return None
    return f"Explain how to {match['rest']}."


@_shape(r"what(?:['\u2019]s| is| are| were| was) (?P<rest>(?:the|some|good|ways?|a good|an easy)\b.*)")
def _the_thing(match: re.Match[str]) -> str:
    return f"Tell me {match['rest']}."


@_shape(r"(?P<what>what|who|where) (?P<be>is|are|was|were) (?P<rest>(?!there\b|it\b|the\b)[^ ]+(?: [^ ]+)?)")
def _short_subject(match: re.Match[str]) -> str:
    return f"Tell me {match['what'].lower()} {match['rest']} {match['be'].lower()}."


@_shape(
    rf"(?P<what>why|where|when|what|which [^ ]+|who|how (?:many|much|long|often) [^ ]+) {_MODAL} {_PRONOUN} "
    r"(?P<rest>.*)"
)
def _modal_after(match: re.Match[str]) -> str:
    return f"Tell me {match['what'].lower()} {_who(match)} {match['modal'].lower()} {match['rest']}."


@_shape(r"(?P<what>why|where|when|what|which [^ ]+|who) do (?P<who>i|you|we|they) (?P<rest>.*)")
def _do_after(match: re.Match[str]) -> str:
    return f"Tell me {match['what'].lower()} {_who(match)} {match['rest']}."


@_shape(
    r"(?P<what>what|who|which [^ ]+) "
    r"(?P<rest>(?:happened|happens|caused|causes|made|makes|led|invented|won|wrote)\b.*)"
)
def _subject_asked(match: re.Match[str]) -> str:
    return f"Tell me {match['what'].lower()} {match['rest']}."


@_shape(rf"{_MODAL} {_PRONOUN} (?P<rest>.*)")
def _whether(match: re.Match[str]) -> str | None:
    if match["who"].lower() == "you":
        return None
    return f"Tell me whether {_who(match)} {match['modal'].lower()} {match['rest']}."


_QUESTIONS = (_how_to, _the_thing, _short_subject, _modal_after, _do_after, _subject_asked, _whether)
_TELL_ME_HOW = re.compile(
    r"\A(?:please )?(?:tell me|explain|show me|describe|teach me) how (?:to|i can) (?P<rest>[^.?!]+)[.!]?\Z",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"\A(?:please )?(?P<rest>(?:tell|give|write|explain|list|describe|show|help|make|create|suggest|"
    r"recommend|compare|summari[sz]e|translate|teach|name|find|provide|define|outline|draft|discuss)\b[^.?!:\n]+)[.!]?\Z",
    re.IGNORECASE,
)


@by_rule
def switch_form(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Put a question as a request to be told, and a request as a question."""
    bare = query.strip()
    if match := _TELL_ME_HOW.match(bare):
        return f"How can I {match['rest']}?"
    if match := _ORDER.match(bare):
        rest = match["rest"]
        return f"Could you {rest[0].lower()}{rest[1:]}?"
    return _reshaped(query, _QUESTIONS)


@_shape(
    rf"how (?:do|can|could|should|would|might) {_PRONOUN} (?P<best>best )?(?P<verb>[a-z]+) "
    r"(?P<object>(?:a|an|the|my|your|our|his|her|their|this|these|those|some|someone's)\b.+)"
)
def _how_is(match: re.Match[str]) -> str | None:
    return _passive("How", match)


@_shape(
    rf"(?P<what>where|when|why) {_MODAL} {_PRONOUN} (?P<best>best )?(?P<verb>[a-z]+) "
    r"(?P<object>(?:a|an|the|my|your|our|his|her|their|this|these|those|some)\b.+)"
)
def _where_is(match: re.Match[str]) -> str | None:
    return _passive(match["what"].capitalize(), match)


def _passive(what: str, match: re.Match[str]) -> str | None:
    """The question with its object as the subject; None where verb or object are not certain."""
    participle = _participle(match["verb"].lower())
    if participle is None or _NOT_IN_OBJECT.search(match["object"]) or match["object"].endswith("ly"):
        return None
    modal = match.groupdict().get("modal") or "can"
    best = "best " if match["best"] else ""
    return f"{what} {modal.lower()} {match['object']} {best}be {participle}?"


@functools.lru_cache(maxsize=4096)
def _participle(verb: str) -> str | None:
    from lemminflect import getInflection, getLemma  # type: ignore[import-untyped]

    if verb in _NO_PASSIVE or verb not in getLemma(verb, "VERB", lemmatize_oov=False):
        return None
    found = getInflection(verb, "VBN", inflect_oov=False)
    return str(found[0]) if found else None


_NO_PASSIVE = frozenset(
    (
        "have",
        "be",
        "do",
        "go",
        "become",
        "cost",
        "resemble",
        "lack",
        "get",
        "seem",
        "let",
        "come",
        "look",
        "ask",
    )
) | {"give", "help", "keep", "make", "prevent", "send", "set", "show", "stop", "teach", "tell"}
"""Verbs without a passive, and those whose object is followed by more that belongs to the verb."""


@by_rule
def to_passive(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Ask what can be done to a thing, in the passive voice."""
    return _reshaped(query, (_how_is, _where_is))


@_shape(r"how (?:do|can|could|should|would|might) (?:i|you|we|one|someone|somebody) (?P<rest>.*)")
def _how_to_alone(match: re.Match[str]) -> str:
    return f"How to {match['rest']}?"


@_shape(
    r"what(?:['\u2019]s| is| are| were| was) (?:(?:the|some|a|an) )?"
    r"(?P<rest>(?:[\w'\u2019]+ ){1,4}(?:of|to|for|in|between)\b.*)"
)
def _thing_alone(match: re.Match[str]) -> str:
    return f"{match['rest']}?"


@by_rule
def drop_words(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Leave out the words without which a query asks the same, as one does in a search box."""
    bare = _FILLERS.sub("", _LEAD_INS.sub("", query.strip())).strip(" ,")
    short = _reshaped(bare, (_how_to_alone, _thing_alone))
    return short[0].upper() + short[1:] if short and short != query.strip() else query


RULES: tuple[Mutator, ...] = (switch_form, to_passive, drop_words)
