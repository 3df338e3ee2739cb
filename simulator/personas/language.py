"""What the simulated models see in a text: finitely many features, whatever the text.

A text is a core with marks of style around it. A mark is a clause such as "As a teacher," that a rewrite
adds or strips, and that is recognised wherever it stands. The topic and the harshness are those of the
words in the core: each topic has neutral signs, and harsh words with harmless synonyms. The form (a how, a
why) is read from the core too. So a mark that is added or stripped changes nothing but itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Self

from pydantic import Field, model_validator

from simulator.chance import pick, share_of
from simulator.personas.tables import Pattern, Patterns, PatternText, Table, Text, Texts, wrong

_TOKEN = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
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
    word = match[0]
    bare = word[:-2] if word.endswith(("'s", "\u2019s")) else word
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


_ENDED = re.compile(r"[.?!\u2026][\"'\u201d\u2019)\]]*\s*\Z")
_END = re.compile(r"(?<![.?!\u2026])[.?!\u2026]++(?=[\"'\u201d\u2019)\]]*\s*\Z)")
_QUESTION = re.compile(
    r"\b(?:how|what|which|why|where|when|who|whom|whose|is|are|was|were|am|do|does|did|can|could|may|might|must|will|"
    r"would|should|has|have|had)\b",
    re.IGNORECASE,
)
_FIRST_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_SPACES = re.compile(r"\s+")
_SPACE_BEFORE = re.compile(r"\s+([,.;:?!])")
_DOUBLE = re.compile(r"[,;:]+\s*([,.;:?!])|([.?!])\s*[,;:.]+(?=\s|\Z)")
_LEADING = re.compile(r"\A[\s,.;:!?-]+")


def is_ended(text: str) -> bool:
    """Whether the text ends with a full stop, a question or an exclamation mark."""
    return _ENDED.search(text) is not None


def ended(text: str) -> str:
    """The text with a mark at its end: `?` for a question, else `.`."""
    if is_ended(text):
        return text
    last = re.split(r"[.?!;:]\s+", text)[-1]
    return text.rstrip(" ,;:") + ("?" if _QUESTION.match(last) else ".")


def unended(text: str) -> str:
    """The text without the mark at its end."""
    return _END.sub("", text).rstrip(" ,;:")


def lowered(text: str, openers: frozenset[str]) -> str:
    """The text to follow a comma: its first word small when it is one of the openers."""
    first = _FIRST_WORD.match(text)
    return text[0].lower() + text[1:] if first and first[0].lower() in openers else text


def capitalised(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def tidied(text: str) -> str:
    """A sentence after a part was cut out of it: spaces and marks as they should be, a capital first."""
    text = _SPACE_BEFORE.sub(r"\1", _SPACES.sub(" ", text).strip())
    text = _DOUBLE.sub(lambda match: match[1] or match[2], _LEADING.sub("", text))
    return capitalised(text.rstrip(" ,;:"))


_EMPTY_WORDS = frozenset(
    tokenise(
        "a an and are as ask asks be can few for i in it its let not of one only or out query same say that "
        "the their they this to two use what who with word words you your"
    )
)
"""Words that do not decide between phrases."""


class Swap(Table):
    """Another way to mark a style: an opening replaced by another, which can be turned back."""

    pattern: Pattern = Field(alias="from")
    to: Text
    back: Text


class Marker(Table):
    """One mark of style."""

    before: Texts = ()
    """Phrases that a rewrite puts in front of the query."""
    after: Texts = ()
    """Phrases that a rewrite puts behind the query."""
    recognise: tuple[PatternText, ...] = ()
    """Regular expressions for what people write to the same effect."""
    swap: Swap | None = None

    @model_validator(mode="after")
    def _check_phrases(self) -> Self:
        if not self.before + self.after:
            raise wrong("before", "must have at least one phrase, or 'after' must")
        return self

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What recognises the mark: its own phrases, the longest first, and people's words."""
        own = [_spaced(phrase) for phrase in sorted(self.before + self.after, key=len, reverse=True)]
        return re.compile("|".join([*own, *(f"(?:{each})" for each in self.recognise)]), re.IGNORECASE)

    def is_in(self, text: str) -> bool:
        """Whether the text carries the mark."""
        return bool(self.pattern.search(text)) or self._swapped_in(text)

    def removed_from(self, text: str) -> str:
        """The text without the mark; the text itself when nothing else would be left."""
        bare = text
        if self.swap and self._swapped_in(bare):
            back = self.swap.back
            bare = _exactly(self.swap.to).sub(lambda m: _cased_as(m[0], back), bare)
        while self.pattern.search(bare):
            bare = tidied(self.pattern.sub(" ", bare))
        return bare or text

    def added_to(self, text: str, openers: frozenset[str], instruction: str, digest: bytes) -> str:
        """The text with the mark, in the words that fit the instruction best.

        Args:
            text: a query without the mark.
            openers: words that need no capital when something comes before them.
            instruction: the mutator's; `as a teacher` prefers a phrase with a teacher.
            digest: decides between phrases that fit equally.
        """
        if self.swap and self.swap.pattern.search(text):
            to = self.swap.to
            return self.swap.pattern.sub(lambda m: _cased_as(m[0], to), text, count=1)
        phrase = _best(self.before + self.after, instruction, digest)
        if phrase in self.before:
            return f"{phrase} {lowered(text, openers)}"
        return f"{ended(text)} {phrase}"

    def _swapped_in(self, text: str) -> bool:
        return self.swap is not None and _exactly(self.swap.to).search(text) is not None


def _spaced(phrase: str) -> str:
    return r"\s+".join(map(re.escape, phrase.split()))


@cache
def _exactly(phrase: str) -> re.Pattern[str]:
    return re.compile(rf"\b{_spaced(phrase)}\b", re.IGNORECASE)


def _cased_as(found: str, phrase: str) -> str:
    return capitalised(phrase) if found[0].isupper() else phrase[0].lower() + phrase[1:]


def _best(phrases: tuple[str, ...], instruction: str, digest: bytes) -> str:
    wanted = set(tokenise(instruction.partition(". ")[0])) - _EMPTY_WORDS
    return max(
        phrases, key=lambda phrase: (len(wanted.intersection(tokenise(phrase))), share_of(digest, phrase))
    )


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


class Form(Table):
    """A kind of question and what it is recognised by; without patterns it takes what is left."""

    name: Text
    pattern: Patterns = Field(default=None, alias="recognise")


class Grammar:
    """Reads features, and adds and strips marks.

    Args:
        lexicon: the words of all topics.
        default_topic: the topic of a text without a word of any.
        forms: in the order in which they are tried; the last takes what is left.
        markers: by name, in the order in which they are stripped.
    """

    def __init__(
        self, *, lexicon: Lexicon, default_topic: str, forms: Sequence[Form], markers: Mapping[str, Marker]
    ) -> None:
        self.lexicon = lexicon
        self.markers = markers
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
