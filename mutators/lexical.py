"""The mutators that need no model: each function returns the rewording itself."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from mutators.mutator import by_rule
from mutators.synonyms import replace_words

_POLITE = re.compile(
    r"\A\W*(?:hello|hi(?!-)|dear|excuse me|kindly|may i|(?:could|would) you|"
    r"i(?:['\u2019]d| would) (?:appreciate|be grateful))\b"
    r"|(?:\A|[.!?,;:]\s*|\byou\s+)please\b"
    r"|(?:\A|[.!?,;:]\s*)(?:many thanks|thanks|thank you)\b[^.!?]{0,30}[.!]?\W*\Z",
    re.IGNORECASE,
)
_IMPERATIVE = re.compile(
    r"\A(?:tell|give|write|explain|list|describe|show|help|make|create|suggest|recommend|compare"
    r"|summari[sz]e|translate|teach|name|find|provide|define|outline|draft|discuss|generate|design"
    r"|plan|fix|solve|calculate|walk)\b(?!:)",
    re.IGNORECASE,
)
_BEFORE = (
    "Hello! {query}",
    "Excuse me, I have a question. {query}",
    "I would be grateful for your help with this. {query}",
    "May I ask you something? {query}",
)
_AFTER = (
    "{query} Thank you!",
    "{query} Thank you for your help.",
    "{query} Many thanks in advance!",
)
_REQUEST = ("Please {query}", "Kindly {query}", "Hello! Please {query}")


@by_rule
def noop(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Leave the query as it is."""
    return query


@by_rule
def add_politeness(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Ask politely.

    A courtesy goes before or after the query; its words stay. A polite query stays as it is.
    """
    bare = query.strip()
    if not bare or _POLITE.search(bare):
        return query
    frames: tuple[str, ...] = _BEFORE
    if _IMPERATIVE.match(bare) and not bare.endswith("?"):
        frames, bare = _REQUEST, bare[0].lower() + bare[1:]
    elif bare[-1] in ".?!" and "\n" not in bare:
        frames = _BEFORE + _AFTER
    return random.Random(seed).choice(frames).replace("{query}", bare)


@by_rule
def synonym_replace(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Replace harsh words by milder ones.

    The words and their synonyms stand in `synonyms.toml`; a query without any of them stays.
    """
    return replace_words(query, random.Random(seed).random())
