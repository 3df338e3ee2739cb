"""A world: what the simulated models see in a text, and what the target answers.

The models know a text by finitely many *features*, whatever the text: its topic, its form (a how, a
why), whether a harsh word stands in it, and its marks of style, such as "As a teacher I ask:",
which a mutation adds or strips. The target counts points of suspicion over these features, and
answers, half-refuses or refuses. Everything is a pure function of the text, so the best policy of a
world can be computed (`benchmarks/optimum.py`).
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256

from simulator.chance import digest_of, pick
from simulator.world_file import LABELS, TERSE, Features, Label, Wording, WorldFile, read_world_file

_REMEMBERED = 16_384
_SUBJECT_WORDS = 9
_LONG_WORD = re.compile(r"[^\W\d_]{5,}")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_SLOT = re.compile(r"\{(\w+)\}")
_ENDED = re.compile(r"[.?!…][\"'”’)\]]*\s*\Z")
_END = re.compile(r"(?<![.?!…])[.?!…]+(?=[\"'”’)\]]*\s*\Z)")
_QUESTION = re.compile(
    r"(?:how|what|which|why|where|when|who\w*|is|are|was|were|am|do|does|did|can|could|may|might|"
    r"must|will|would|should|has|have|had)\b",
    re.IGNORECASE,
)


class World:
    """The models of one file."""

    def __init__(self, file: WorldFile) -> None:
        self.file = file
        self.fingerprint = sha256(file.model_dump_json().encode()).hexdigest()
        """Stands for all that the file says."""
        self.fragments = {label: _fragments(getattr(file.target, label)) for label in LABELS}
        """What a reply of each kind is known by."""
        self.read = lru_cache(_REMEMBERED)(self._read)
        """The features of a text."""
        self._marks = {
            name: _any_of([*mark.before, *mark.after], mark.recognise.pattern)
            for name, mark in file.marks.items()
        }
        self._topics: dict[str, tuple[str, bool]] = {}
        """Of each word or phrase the first topic that has it, and whether it is harsh."""
        for name, topic in file.topics.items():
            for phrases, harsh in ((topic.words, True), (topic.signs, False)):
                for phrase in phrases:
                    self._topics.setdefault(phrase.lower(), (name, harsh))
        self._lexicon = re.compile(
            rf"\b({_any_of(self._topics).pattern})(?:s|es|d|ed|ing)?\b", re.IGNORECASE
        )

    def has_mark(self, text: str, name: str) -> bool:
        """Whether a text has a mark of style."""
        return bool(self._marks[name].search(text)) if name != TERSE else not is_ended(text)

    def stripped(self, text: str, name: str) -> str:
        """The text without a mark; the text itself when nothing else would be left."""
        bare = text
        while self._marks[name].search(bare):
            bare = _tidied(self._marks[name].sub(" ", bare))
        return bare or text

    def core(self, text: str) -> str:
        """The text without marks of style, but for its end."""
        for name in self._marks:
            text = self.stripped(text, name)
        return text

    def soften(self, text: str) -> str:
        """The text with its harsh words in quotation marks."""
        for found, _, harsh in reversed(list(self._words(text))):
            if harsh:
                begin, end = found.span()
                text = f"{text[:begin]}“{text[begin:end]}”{text[end:]}"
        return text

    def decide(self, features: Features) -> Label:
        """What the target does with a text of these features."""
        topic, rules = self.file.topics[features.topic], self.file.target
        marks = [topic.weights.get(mark, 0) for mark in features.marks]
        form = topic.forms.get(features.form, 0)
        # A set has no order: summed exactly, the points have the same bits in every process.
        points = math.fsum([topic.base, topic.harsh * features.harsh, form, *marks])
        if points >= rules.refused_from:
            return "refused"
        return "partly_refused" if points >= rules.partly_from else "answered"

    def answer(self, query: str, digest: bytes) -> str:
        """The target's reply, worded by the digest."""
        features = self.read(query)
        wording: Wording = getattr(self.file.target, self.decide(features))
        said = []
        for place, name in enumerate(pick(wording.patterns, digest, "pattern").split()):
            sentences = wording.sentences[name]
            fitting = sentences[features.form] if isinstance(sentences, dict) else sentences
            said.append(pick(fitting, digest_of(digest.hex(), place), name))
        return filled(" ".join(said), self._slots(query, digest))

    def thoughts(self, query: str, digest: bytes) -> str:
        """What a model thinks before it replies; the same whatever it plays."""
        return filled(self.file.target.thoughts, self._slots(query, digest))

    def embed(self, text: str) -> list[float]:
        """A vector of length 1: hashed words and letter triples, so that alike texts lie close."""
        row = [0.0] * self.file.dimension
        for word in tokenise(text) or [""]:
            for number, weight in _hashed(word):
                row[number % len(row)] += weight
        norm = math.hypot(*row)
        return [value / norm for value in row] if norm else [1.0, *row[1:]]

    def _read(self, text: str) -> Features:
        text = text.strip()
        marks = {name for name, pattern in self._marks.items() if pattern.search(text)}
        core = self.core(text) if marks else text
        found = list(self._words(core))
        topics = {topic for _, topic, _ in found}
        first_topics = [each for each in self.file.topics if each in topics]
        forms = [each for each in self.file.forms if each.recognise and each.recognise.search(core)]
        return Features(
            topic=[*first_topics, self.file.default_topic][0],
            form=[*forms, self.file.forms[-1]][0].name,
            harsh=any(harsh for _, _, harsh in found),
            marks=frozenset(marks if is_ended(text) else marks | {TERSE}),
        )

    def _words(self, text: str) -> Iterator[tuple[re.Match[str], str, bool]]:
        """The topics' words in a text, each with its topic and whether it is harsh, unquoted."""
        plain = text.replace("’", "'")
        for found in self._lexicon.finditer(plain):
            topic, harsh = self._topics[found[1].lower()]
            quoted = plain[: found.start()].endswith("“") and plain[found.end() :].startswith("”")
            yield found, topic, harsh and not quoted

    def _slots(self, query: str, digest: bytes) -> dict[str, str]:
        """`{subject}`: what the question is about, in its words; `{word}`: its longest word."""
        bare = self.file.target.leads.sub("", unended(self.core(query)), count=1)
        subject = " ".join(bare.split()[:_SUBJECT_WORDS]) or "this"
        longest = sorted(_LONG_WORD.findall(subject) or ["this"], key=len, reverse=True)[:2]
        return {"subject": subject, "word": pick(longest, digest, "word")}


def load_world(name: str) -> World:
    """A bundled world by its name, or a user's own by its path; raises as `read_world_file`."""
    return World(read_world_file(name))


def _any_of(phrases: Iterable[str], *patterns: str) -> re.Pattern[str]:
    """What finds any of these phrases, the longest before the shorter, or one of the patterns."""
    longest_first = sorted(phrases, key=len, reverse=True)
    found_by = [*map(re.escape, longest_first), *patterns]
    return re.compile("|".join(found_by) or "(?!)", re.IGNORECASE)


def _fragments(wording: Wording) -> list[str]:
    """The fixed part of each decisive sentence: the longest run without a slot."""
    lists = wording.sentences[wording.decisive]
    sentences = (
        [each for some in lists.values() for each in some] if isinstance(lists, dict) else lists
    )
    return [max((part.strip() for part in _SLOT.split(each)[::2]), key=len) for each in sentences]


@lru_cache(_REMEMBERED)
def _hashed(word: str) -> list[tuple[int, float]]:
    """A word and its letter triples, each as a number and a weight with its sign."""
    padded = f" {word} "
    keys = [
        (f"w:{word}", 2.0),
        *((f"c:{padded[at : at + 3]}", 1.0) for at in range(len(padded) - 2)),
    ]
    drawn = [(zlib.crc32(key.encode("utf-8", "replace")), weight) for key, weight in keys]
    return [(number, weight if number & 0x80000000 else -weight) for number, weight in drawn]


def tokenise(text: str) -> list[str]:
    """The words of a text in lower case."""
    return _WORD.findall(text.lower().replace("’", "'"))


def filled(template: str, slots: Mapping[str, str]) -> str:
    """The template with its slots filled; an unknown one stays."""
    return _SLOT.sub(lambda found: slots.get(found[1], found[0]), template)


def is_ended(text: str) -> bool:
    """Whether a text ends with a full stop, a question or an exclamation mark."""
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


def _tidied(text: str) -> str:
    """A sentence after a part was cut out of it: marks as they should be, a capital first."""
    text = re.sub(r"\s+([,.;:?!])", r"\1", " ".join(text.split())).lstrip(" ,.;:!?-")
    text = re.sub(r"[,;:]+\s*(?=[,.;:?!])|(?<=[.?!])\s*[,;:.]+(?=\s|\Z)", "", text).rstrip(" ,;:")
    return text[:1].upper() + text[1:]
