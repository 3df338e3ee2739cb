"""Takes one query out of what a model sent when it was asked for a rewrite alone.

Small models dress a rewrite in courtesies, labels, tags, quotes, markdown, lists and explanations. Each
step here takes one such dress off and leaves a plain query as it is; steps only remove, and `clean` repeats
them until none finds anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_ADJECTIVE = (
    r"(?:new|final|possible|revised|rewritten|re-written|reworded|rephrased|paraphrased|modified|updated|improved|"
    r"alternative|mutated|shortened|shorter|concise|expanded|longer|simplified|simpler|formal|formali[sz]ed|polite|"
    r"passive(?:[ -]voice)?|clarified|clearer|combined|merged|similar|contextuali[sz]ed)"
)
_NOUN = (
    r"(?:query|queries|question|request|prompt|version|rewrite|rewording|rephrasing|paraphrase|output|result|"
    r"sentence)"
)
_MARK = r"[*_`#\s]*"
_ADJECTIVES = rf"(?:(?:the|a|an|your|my)[ ]+)?{_ADJECTIVE}(?:[ ]+{_ADJECTIVE}){{0,2}}"
_NAME = rf"{_MARK}(?:{_ADJECTIVES}(?:[ ]+{_NOUN})?|{_NOUN})(?:[ ]\d+)?{_MARK}"
_COURTESY = r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|great|no problem|understood|got it)"
_LABEL = rf"{_NAME}(?:[ ](?:is|could be|would be))?[ ]*:{_MARK}"
_HERE = (
    rf"{_MARK}(?:here(?:['\u2019]s| is| are)|below is|i(?:['\u2019]ve| have) re\w+)\b[^:\n?]{{0,120}}:{_MARK}"
)

_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_TOKEN = re.compile(r"\A<\|[^|<>]{1,40}\|>|(?:<\|[^|<>]{1,40}\|>.*|</s>)\Z", re.DOTALL)
_TAGS = r"(?:query|rewrite|rewritten|rewritten_query|output|answer)"
_TAGGED = re.compile(rf"<({_TAGS})>\s*(?P<inside>\S(?:(?!<\1>).)*?)\s*</\1>", re.DOTALL | re.IGNORECASE)
_TAG_BEFORE = re.compile(rf"\A(?:<{_TAGS}>\s*)+", re.IGNORECASE)
_TAG_AFTER = re.compile(rf"</{_TAGS}>\s*(?:\n.*)?\Z", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"\A```[^\n`]*\n(?P<inside>.*?)(?:\n?```.*)?\Z", re.DOTALL)
_FENCE_IN_LINE = re.compile(r"\A(`{1,3})(?P<inside>[^`\n]+)\1\Z")
_PREAMBLE = re.compile(rf"\A(?:{_COURTESY}[!.,]?\s+)?(?:{_HERE}|{_LABEL})", re.IGNORECASE)
_PREAMBLE_LINE = re.compile(
    rf"\A(?:{_COURTESY}\b[^\n?]{{0,120}}|here(?:['\u2019]s| is)\b[^\n?]{{0,120}}|{_NAME})\n", re.IGNORECASE
)
_EXCLAIMED = re.compile(rf"\A{_COURTESY}!+\s+", re.IGNORECASE)
_LABELLED_LATER = re.compile(
    rf"\n(?=[^:\n]{{0,30}}(?:re-?written|reworded|rephrased|revised|paraphrased)\b){_NAME}:",
    re.IGNORECASE,
)
_REWRITTEN_AS = re.compile(
    r"\A[^\n]{0,600}\b(?:rewritten|reworded|rephrased|paraphrased) as:?\s*"
    r'["\u201c](?P<inside>[^"\u201c\u201d\n]+)["\u201d][.]?\Z',
    re.IGNORECASE,
)
_EXPLANATION = re.compile(
    r"\n\s*[(*_]*(?:note|explanation|reason(?:ing)?|changes?(?: made)?|original(?: query)?|rationale)\b"
    r"[*_]*:.*\Z",
    re.DOTALL | re.IGNORECASE,
)
_MARKER = r"(?:\(?\d{1,2}[.)]|[-*+\u2022])[ \t]+"
_LIST = re.compile(rf"\A(?:{_MARKER})+(?P<inside>\S.*?)(?:\n\s*(?:{_MARKER}|\n).*)?\Z", re.DOTALL)
_HEADING = re.compile(r"\A(?:#{1,6}|>)[ \t]+")
_EMPHASIS = re.compile(r"\A(\*{1,3}|_{1,3})(?P<inside>[^*_\s](?:[^*_]*[^*_\s])?)\1\Z")
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb", "\u201e": "\u201c"}


def clean(text: str) -> str:
    """The one query in a model's reply, without what the model put around it.

    A list gives its first item, repeated tags their last content; nothing is left of a reply that is nothing
    but dress. `clean(clean(text)) == clean(text)`.

    Args:
        text: The reply to a prompt that asked for a rewrite alone.
    """
    while True:
        bare = text.strip()
        for step in _STEPS:
            bare = step(bare).strip()
        if bare == text:
            return bare
        text = bare


def _cut(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """A step that removes the first match."""
    return lambda text: pattern.sub("", text, count=1)


def _unwrap(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """A step that keeps only what the pattern finds inside."""

    def step(text: str) -> str:
        match = pattern.search(text)
        return match["inside"] if match else text

    return step


def _last_tagged(text: str) -> str:
    inside = [match["inside"] for match in _TAGGED.finditer(text)]
    return inside[-1] if inside else text


def _from_label(text: str) -> str:
    match = _LABELLED_LATER.search(text)
    return text[match.start() + 1 :] if match else text


def _first_paragraph(text: str) -> str:
    """The text up to a blank line, unless the first paragraph announces what follows, or code follows."""
    first, blank, rest = text.partition("\n\n")
    if not blank or first.rstrip().endswith(":") or rest.lstrip().startswith("```"):
        return text
    return first


def _unquoted(text: str) -> str:
    """The text without a pair of quotes around all of it, or without a quote that is never closed."""
    closing = _QUOTES.get(text[:1])
    if closing is None:
        return text
    body = text[:-1] if text.endswith((closing + ".", closing + ",")) else text
    if len(body) > 1 and body.endswith(closing) and _is_one_quotation(body[1:-1], text[0], closing):
        return body[1:-1]
    return text[1:] if text[0] != "'" and closing not in text[1:] else text


def _is_one_quotation(inside: str, opening: str, closing: str) -> bool:
    """Whether quotes inside the outer pair are apostrophes or quotations of their own."""
    mark = re.escape(closing)
    end = re.search(rf"(?<=\S){mark}(?!\w)", inside)
    start = re.search(rf"(?:^|(?<=[\s(])){re.escape(opening)}(?=\w)", inside)
    return end is None or (start is not None and start.start() < end.start())


_STEPS: tuple[Callable[[str], str], ...] = (
    _cut(_THOUGHT),
    _cut(_TOKEN),
    _last_tagged,
    _cut(_TAG_BEFORE),
    _cut(_TAG_AFTER),
    _from_label,
    _cut(_PREAMBLE),
    _cut(_PREAMBLE_LINE),
    _cut(_EXCLAIMED),
    _unwrap(_REWRITTEN_AS),
    _unwrap(_FENCE),
    _unwrap(_FENCE_IN_LINE),
    _unwrap(_LIST),
    _first_paragraph,
    _cut(_EXPLANATION),
    _cut(_HEADING),
    _unwrap(_EMPHASIS),
    _unquoted,
)
