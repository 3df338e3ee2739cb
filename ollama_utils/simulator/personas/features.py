"""What the simulated models see in a text: finitely many features, whatever the text.

A text is a core with marks of style around it. The topic, the form and the harshness are read from the
core, the marks from the text: so a mark that is added or stripped changes nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ollama_utils.simulator.personas.lexicon import Lexicon
from ollama_utils.simulator.personas.markers import Marker
from ollama_utils.simulator.personas.surface import ended, is_ended, unended

TERSE = "terse"
"""The mark of a text that ends without a full stop or a question mark, as one types into a search box."""

_REMEMBERED = 16_384


@dataclass(frozen=True, slots=True)
class Features:
    """Everything about a text that decides what is answered and what a rewrite does."""

    topic: str
    form: str
    """What kind of question it is, such as how, why or what."""
    harsh: bool
    """Whether a harsh word stands in it."""
    markers: frozenset[str]
    """The marks of style."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A kind of question and what it is recognised by; without patterns it takes what is left."""

    name: str
    pattern: re.Pattern[str] | None


class Grammar:
    """Reads features, and adds and strips marks.

    Args:
        lexicon: the words of all topics.
        default_topic: the topic of a text without a word of any.
        forms: in the order in which they are tried; the last takes what is left.
        markers: in the order in which they are stripped.
    """

    def __init__(
        self, *, lexicon: Lexicon, default_topic: str, forms: Sequence[Form], markers: Sequence[Marker]
    ) -> None:
        self.lexicon = lexicon
        self.markers = {marker.name: marker for marker in markers}
        self._default_topic = default_topic
        self.forms = tuple(forms)
        self.features = lru_cache(_REMEMBERED)(self._features)
        self._bare = lru_cache(_REMEMBERED)(self._stripped)

    def core(self, text: str) -> str:
        """The text without any mark; the text itself when it is nothing but marks."""
        return self._bare(text) if self.features(text).markers - {TERSE} else text

    def with_terse(self, text: str, *, terse: bool) -> str:
        """The text with or without a mark at its end."""
        return unended(text) if terse else ended(text)

    def _features(self, text: str) -> Features:
        text = text.strip()
        found = {name for name, marker in self.markers.items() if marker.is_in(text)}
        core = self._bare(text) if found else text
        topic, harsh = self.lexicon.read(core)
        if not is_ended(text):
            found.add(TERSE)
        return Features(
            topic=topic or self._default_topic,
            form=next(form.name for form in self.forms if form.pattern is None or form.pattern.search(core)),
            harsh=harsh,
            markers=frozenset(found),
        )

    def _stripped(self, text: str) -> str:
        for marker in self.markers.values():
            text = marker.removed_from(text)
        return text
