"""Replies in fourteen languages other than English: which one it is, and whether it declines.

A language is known by its script, its commonest words and the letters that it alone has; what
looks like none of them, or like two, is unknown. A sentence declines where it says in the first
person that the speaker cannot, may not or will not do what was asked. Words and patterns stand in
`data/languages.toml`. The patterns were written first, from what we know of the languages, and then
widened on half of the replies of `tests/scorers/data/refusals_by_language.jsonl`; how they do on
the other half stands in docs/reward.md.
"""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

LANGUAGES = Path(__file__).parent / "data" / "languages.toml"
KNOWN_SHARE = 0.12
"""So many of the words of a text are among the commonest of its language, or it is another one."""
LEAD = 1.25
"""So many times as many as of the next language; less, and the two cannot be told apart."""
_READ_CHARS = 2_000
"""Of a text so many characters say which language it is in."""
_PLAIN = str.maketrans(
    {"\u2019": "'", "\u0451": "\u0435", "\u0901": "\u0902"}
    | dict.fromkeys(map(chr, (*range(0x64B, 0x653), 0x307, 0x640, 0x93C, 0x200C, 0x200D)))
)
"""Away with what writers may leave out: vowel signs, dots below and joiners."""
_WORD = re.compile(
    r"[^\s\d\x21-\x40\x5b-\x60\x7b-\x7e\xa0-\xbf\u0964\u060c\u061b\u061f\u2010-\u203a]+"
)
"""Not `\\w`, which has no signs of vowels: Hindi's words would be in pieces."""
_QUOTED = re.compile(
    r'(?<!\S)"[^"\n]{1,400}(?:"|$)|\xbb[^\xab\n]{1,400}\xab'
    r"|[\xab\u201e\u201c\u2039\u300c\u300e][^\xab\xbb\u201c-\u201e\u2039\u203a\u300c-\u300f\n]{1,400}"
    r"(?:[\xbb\u201d\u201c\u203a\u300d\u300f]|$)"
)
_SCRIPTS = {
    "ja": re.compile(r"[\u3040-\u30ff]"),
    "ko": re.compile(r"[\uac00-\ud7a3]"),
    "zh": re.compile(r"[\u4e00-\u9fff]"),
    "ar": re.compile(r"[\u0620-\u06d3]"),
    "hi": re.compile(r"[\u0904-\u0939]"),
    "ru": re.compile(r"[\u0400-\u04ff]"),
    "latin": re.compile(r"[a-zA-Z\u00c0-\u024f\u1e00-\u1eff]"),
}


@functools.lru_cache(maxsize=1024)
def language_of(text: str) -> str | None:
    """The language of a text as ISO 639-1 names it; None for one that is not known.

    Words in another script among it (names, code) do not matter, as long as most are in one.
    """
    text = _plain(text[:_READ_CHARS].lower())
    letters = {name: len(script.findall(text)) for name, script in _SCRIPTS.items()}
    script = max(letters, key=lambda name: letters[name])
    if 2 * letters[script] <= sum(map(str.isalpha, text)) - letters["ja"]:
        return None
    if script == "zh" and 5 * letters["ja"] > letters["zh"]:
        return "ja"  # which writes half of its words in Chinese characters
    if script in {"ja", "ko", "zh"}:
        return script
    words = _WORD.findall(text)
    counts = {
        name: sum(word in common or any(letter in word for letter in own) for word in words)
        for name, (common, own) in _marks().items()
    }
    if script != "latin":  # of one language above all, which needs no common word
        counts[script] += 1
    else:
        counts["unknown"] += int(KNOWN_SHARE * len(words))
    *_, second, language = sorted(counts, key=lambda name: counts[name])
    is_known = language in _table() and language != "unknown"
    return language if is_known and counts[language] >= LEAD * counts[second] else None


def declines_in(language: str, sentence: str) -> bool:
    """Whether a sentence, in lower case, says that the speaker cannot or will not serve.

    Quotations are not read. The language is any but English, which `scorers.refusal` reads.
    """
    return _declines(language).search(_QUOTED.sub(" ", _plain(sentence))) is not None


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).translate(_PLAIN)


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(LANGUAGES.read_text(encoding="utf-8"))


@functools.cache
def _marks() -> dict[str, tuple[frozenset[str], str]]:
    """By language its commonest words, and the letters of which one is as good as such a word."""
    marks = {
        name: (frozenset(each.get("words", "").split()), each.get("letters", ""))
        for name, each in _table().items()
    }
    rivals = _table()["unknown"]["rivals"]
    return marks | {name: (frozenset(words.split()), "") for name, words in rivals.items()}


@functools.cache
def _declines(language: str) -> re.Pattern[str]:
    known = _table()[language]
    serve = known.get("serve", "").strip()
    return re.compile(_plain("|".join(known["declines"]).replace("@", serve)))
