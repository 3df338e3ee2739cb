"""Takes one query out of what a model sent when it was asked for a rewrite alone.

Small models dress a rewrite in courtesies, labels, tags, quotes, markdown, lists and explanations. Each
step here takes one such dress off; steps only remove, and `clean` repeats them until none finds anything. A
step that would take something off the query that the rewrite was asked for is left out: what a query wears,
its rewrite may wear. A label, a heading or a list's marker is spared only in the query's own words.

A loop of newlines or markdown up to the reply's limit is common, so every pattern takes time linear in the
text (possessive `*+`, `++` where two runs meet), and `clean` bounds how often they run.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

Step = Callable[[str], str]

MAX_CHARS = 8_000
"""Of a reply so many characters are read, unless the query itself is longer."""
MAX_LAYERS = 20
"""A reply that wears more dresses than these over each other is nothing but dress."""

_ADJECTIVE = (
    r"(?:new|final|possible|revised|rewritten|re-written|reworded|rephrased|paraphrased|modified|updated|improved|"
    r"alternative|mutated|shortened|shorter|concise|expanded|longer|simplified|simpler|formal|formali[sz]ed|polite|"
    r"passive(?:[ -]voice)?|clarified|clearer|combined|merged|similar|contextuali[sz]ed)"
)
_NOUN = (
    r"(?:query|queries|question|request|prompt|version|rewrite|rewording|rephrasing|paraphrase|output|result|"
    r"sentence)"
)
_MARK = r"[*_`#\s]*+"
_ADJECTIVES = rf"(?:(?:the|a|an|your|my)[ ]+)?{_ADJECTIVE}(?:[ ]+{_ADJECTIVE}){{0,2}}"
_NAME = rf"{_MARK}(?:{_ADJECTIVES}(?:[ ]+{_NOUN})?|{_NOUN})(?:[ ]\d+)?"
_COURTESY = (
    r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|great(?: question)?|no problem|understood|"
    r"got it)"
)
_DASH = r"[ ]?[-\u2013\u2014]"
_LABEL = rf"{_NAME}{_MARK}(?:(?<=[ ])(?:is|could be|would be)[ ]*+)?:[*_`]*+"
_HERE = (
    rf"{_MARK}(?:here(?:['\u2019]s| is| are)|below is|i(?:['\u2019]ve| have) re\w+)\b[^:\n?]{{0,120}}:[*_`]*+"
)

_TOKEN = re.compile(r"\A<\|[^|<>]{1,40}\|>|(?:<\|[^|<>]{1,40}\|>.*|</s>)\Z", re.DOTALL)
_TAGS = r"(?:query|rewrite|rewritten|rewritten_query|output|answer)(?:-[0-9a-f]{8})?"
_TAG = re.compile(rf"</?{_TAGS}>", re.IGNORECASE)
_TAGGED = re.compile(rf"<({_TAGS})>\s*+(?P<inside>\S(?:(?!<\1>).)*?)</\1>", re.DOTALL | re.IGNORECASE)
_TAG_BEFORE = re.compile(rf"\A(?:<{_TAGS}>\s*)+", re.IGNORECASE)
_TAG_AFTER = re.compile(rf"</{_TAGS}>\s*(?:\n.*)?\Z", re.DOTALL | re.IGNORECASE)
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_FENCE = re.compile(r"\A```[^\n`]*\n(?P<inside>.*?)(?:\n?```.*)?\Z", re.DOTALL)
_FENCE_IN_LINE = re.compile(r"\A(`{1,3})(?P<inside>[^`\n]+)\1\Z")
_PREAMBLE = re.compile(rf"\A(?:{_COURTESY}(?:[!.,]|{_DASH})?\s++)?(?:{_HERE}|{_LABEL})", re.IGNORECASE)
_PREAMBLE_LINE = re.compile(
    rf"\A(?:(?:{_COURTESY}(?:(?:[!.,:]|(?:{_DASH})?[ ]here\b)[^\n?]{{0,120}})?|"
    rf"here(?:['\u2019]s| is)\b[^\n?]{{0,120}}|{_NAME}[*_`# \t]*)\n)+",
    re.IGNORECASE,
)
_EXCLAIMED = re.compile(rf"\A{_COURTESY}!+\s+", re.IGNORECASE)
_LABELLED_LATER = re.compile(
    rf"\n(?=[^:\n]{{0,30}}(?:re-?written|reworded|rephrased|revised|paraphrased)\b){_NAME}{_MARK}:",
    re.IGNORECASE,
)
_REWRITTEN_AS = re.compile(
    r"\A[^\n]{0,600}\b(?:rewritten|reworded|rephrased|paraphrased) as:?\s*"
    r'["\u201c](?P<inside>[^"\u201c\u201d\n]+)["\u201d][.]?\Z',
    re.IGNORECASE,
)
_EXPLANATION = re.compile(
    r"(?<=[ ])\(note:[^()]*\)\Z|"
    r"\n[ \t]*[(*_]*(?:note|explanation|reason(?:ing)?|changes?(?: made)?|original(?: query)?|rationale)\b"
    r"[*_]*:.*\Z",
    re.DOTALL | re.IGNORECASE,
)
_UNDRESSED = re.compile(rf"\s*[^\W\d_][^\n<`:!\"\u201c\u201d]{{0,{MAX_CHARS - 1}}}")
"""No dress begins with a letter and has none of these: most replies need no closer look."""
_MARKER = r"(?:\(?\d{1,2}[.)]|[-*+\u2022])[ \t]+"
_LIST = re.compile(rf"\A(?:{_MARKER})+(?P<inside>\S.*?)(?:\n\s*(?:{_MARKER}|\n).*)?\Z", re.DOTALL)
_HEADING = re.compile(r"\A(?:(?:#{1,6}|>)[ \t]+)+")
_EMPHASIS = re.compile(r"\A(\*{1,3}|_{1,3})(?P<inside>[^*_\s](?:[^*_]*[^*_\s])?)\1\Z")
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb", "\u201e": "\u201c"}


def clean(text: str, query: str) -> str:
    """The one query in a model's reply, without what the model put around it.

    A list gives its first item, repeated tags their last content; nothing is left of a reply that is nothing
    but dress. Whatever the query looks like, `clean(query, query) == query.strip()`, and cleaning twice is
    cleaning once.

    Args:
        text: The reply to a prompt that asked for a rewrite alone.
        query: The query that the rewrite was asked for.
    """
    if _UNDRESSED.fullmatch(text):
        return text.strip()
    steps = _steps_for(query.strip())
    for _ in range(MAX_LAYERS):
        bare = text.strip()
        for step in steps:
            bare = step(bare).strip()
        if bare == text:
            return bare
        text = bare
    return ""


@functools.lru_cache(maxsize=1024)
def _steps_for(query: str) -> list[Step]:
    """The steps that take off nothing that the query wears itself."""
    tagged, paragraphs = bool(_TAG.search(query)), bool(_BLANK_LINE.search(query))
    steps: list[Step] = []
    for step in _STEPS:
        if step in _LABEL_STEPS and (worn := _label(step, query)):
            steps.append(_sparing(step, worn))
        elif (
            step(query).strip() == query
            and not (tagged and step in _TAG_STEPS)
            and not (paragraphs and step is _first_paragraph)
        ):
            steps.append(step)
    return steps


def _label(step: Step, text: str) -> str:
    """What the step takes off the front of a text; empty when it takes nothing, all, or some of the end."""
    bare = step(text).strip()
    return text.removesuffix(bare).strip().casefold() if bare and text.endswith(bare) else ""


def _sparing(step: Step, label: str) -> Step:
    """The step, which leaves this one label where it is."""
    return lambda text: text if _label(step, text) == label else step(text)


def _cut(pattern: re.Pattern[str]) -> Step:
    """A step that removes the first match."""
    return lambda text: pattern.sub("", text, count=1)


def _unwrap(pattern: re.Pattern[str]) -> Step:
    """A step that keeps only what the pattern finds inside."""

    def step(text: str) -> str:
        match = pattern.search(text)
        return match["inside"] if match else text

    return step


def _opening(text: str) -> str:
    return text[:MAX_CHARS]


def _last_tagged(text: str) -> str:
    inside = [match["inside"] for match in _TAGGED.finditer(text)]
    return inside[-1] if inside else text


def _from_label(text: str) -> str:
    match = _LABELLED_LATER.search(text)
    return text[match.start() + 1 :] if match else text


def _first_paragraph(text: str) -> str:
    """The text up to a blank line, unless the first paragraph announces what follows."""
    first = _BLANK_LINE.split(text, maxsplit=1)[0]
    return text if first.rstrip().endswith(":") else first


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


_TAG_STEPS: tuple[Step, ...] = (_last_tagged, _cut(_TAG_BEFORE), _cut(_TAG_AFTER))
_LABEL_STEPS: tuple[Step, ...] = (_cut(_PREAMBLE), _unwrap(_LIST), _cut(_HEADING))
_without_label, _first_item, _without_heading = _LABEL_STEPS
_STEPS: tuple[Step, ...] = (
    _opening,
    _cut(_TOKEN),
    *_TAG_STEPS,
    _from_label,
    _without_label,
    _cut(_PREAMBLE_LINE),
    _cut(_EXCLAIMED),
    _unwrap(_REWRITTEN_AS),
    _unwrap(_FENCE),
    _unwrap(_FENCE_IN_LINE),
    _first_item,
    _first_paragraph,
    _cut(_EXPLANATION),
    _without_heading,
    _unwrap(_EMPHASIS),
    _unquoted,
)
