"""What is said of a reply: four labels, and the words that people and classifiers have for them."""

from __future__ import annotations

import re
from typing import Literal, get_args

RefusalLabel = Literal["answered", "partly_refused", "refused", "undetermined"]
"""`answered`; `partly_refused` (declines, yet helps with a part or with something near it);
`refused`; `undetermined` (neither helps nor declines: rambling, an echo, a fragment)."""
REFUSAL_LABELS: tuple[RefusalLabel, ...] = get_args(RefusalLabel)
REFUSALS: frozenset[RefusalLabel] = frozenset({"partly_refused", "refused"})
"""The labels that a refusal rate counts."""

_WORDS: dict[RefusalLabel, str] = {
    "answered": "answered answer full_compliance compliance compliant complied comply complies "
    "not_refused no_refusal non_refusal normal 0 0.0 false",
    "refused": "refused full_refusal refusal refuse refuses rejection rejected 1 1.0 true",
    "partly_refused": "partly_refused partial_refusal partial partially_refused",
    "undetermined": "undetermined unclear neither",
}
_MEANING = {word: label for label, words in _WORDS.items() for word in words.split()}


def parse_label(value: object) -> RefusalLabel | None:
    """A label in somebody's words as one of ours; None where it is none that is known.

    Case, blanks and dashes do not matter, nor does a number in front (XSTest's `2_full_refusal`).
    1 is a refusal, 0 is none.
    """
    word = re.sub(r"[\s\-]+", "_", str(value).strip().casefold())
    return _MEANING.get(word) or _MEANING.get(re.sub(r"^\d+_(?=[a-z])", "", word))
