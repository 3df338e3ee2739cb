"""Words that tell a query's topic: harsh ones, with harmless synonyms, and neutral signs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ollama_utils.simulator.chance import pick

_TOKEN = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s\Z")
_ARTICLE = re.compile(r"\b(an?)(\s+)\Z", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word or phrase that belongs to a topic."""

    topic: str
    synonyms: tuple[str, ...] = ()
    """What may stand in its place; a word that has any is harsh."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A word of the lexicon in a text, from `start` up to `end`."""

    start: int
    end: int
    word: Word


class Lexicon:
    """Finds the words of all topics in a text; of two that begin together the longer counts.

    Args:
        topics: the topics' names; of several in one text the first here is the text's.
        words: the words by what they look like, in lower case.
    """

    def __init__(self, topics: Sequence[str], words: dict[str, Word]) -> None:
        self._rank = {topic: place for place, topic in enumerate(topics)}
        self._phrases: dict[str, list[tuple[tuple[str, ...], Word]]] = {}
        for phrase, word in words.items():
            tokens = tokenise(phrase)
            self._phrases.setdefault(tokens[0], []).append((tokens, word))
        for phrases in self._phrases.values():
            phrases.sort(key=lambda item: -len(item[0]))

    def find(self, text: str) -> Iterator[Found]:
        """The words in the order of the text; no two overlap."""
        spans = [(m.start(), *_plain(m)) for m in _TOKEN.finditer(text)]
        tokens = [token for _, _, token in spans]
        place = 0
        while place < len(tokens):
            length, word = self._longest(tokens, place)
            if word is not None:
                yield Found(start=spans[place][0], end=spans[place + length - 1][1], word=word)
            place += length

    def read(self, text: str) -> tuple[str | None, bool]:
        """The text's topic (None without a word of any) and whether a harsh word stands in it."""
        found = list(self.find(text))
        topics = {item.word.topic for item in found}
        topic = min(topics, key=self._rank.__getitem__, default=None)
        return topic, any(item.word.synonyms for item in found)

    def soften(self, text: str, digest: bytes) -> str:
        """The text with every harsh word replaced; equal words get equal synonyms."""
        pieces: list[str] = []
        end = 0
        for item in self.find(text):
            if not item.word.synonyms:
                continue
            synonym = pick(item.word.synonyms, digest, item.word.synonyms[0])
            before = _with_article(text[end : item.start], synonym)
            pieces += [before, _capitalised_as(text[item.start], synonym)]
            end = item.end
        return "".join([*pieces, text[end:]])

    def _longest(self, tokens: list[str], place: int) -> tuple[int, Word | None]:
        for phrase, word in self._phrases.get(tokens[place], ()):
            if tuple(tokens[place : place + len(phrase)]) == phrase:
                return len(phrase), word
        return 1, None


def tokenise(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without a possessive's ending."""
    return tuple(_plain(match)[1] for match in _TOKEN.finditer(text))


def _plain(match: re.Match[str]) -> tuple[int, str]:
    """Where a word ends without its possessive ending, and the word so far in lower case."""
    bare = _POSSESSIVE.sub("", match[0])
    return match.start() + len(bare), bare.lower().replace("\u2019", "'")


def _with_article(before: str, word: str) -> str:
    """The text before a word with `a` or `an` as the word needs it."""
    article = _ARTICLE.search(before)
    if article is None:
        return before
    fitting = "an" if word[0].lower() in "aeiou" else "a"
    fitting = fitting.capitalize() if article[1][0].isupper() else fitting
    return before[: article.start()] + fitting + article[2]


def _capitalised_as(first: str, word: str) -> str:
    return word[0].upper() + word[1:] if first.isupper() else word
