"""Takes one query out of what a model sent when it was asked for a rewrite alone.

Small models put courtesies, labels, tags, quotes, markdown, lists and explanations around it. Each
pattern finds one of these; what it finds is cut, or all but its group `inside`. All are repeated
until none finds anything. A pattern that would change the query itself is not used: what stands
around a query may stand around its rewrite.

A loop of newlines or markdown up to the reply's limit is common, so each pattern takes time linear
in the text.
"""

from __future__ import annotations

import re

MAX_CHARS = 8_000
"""How many characters of a reply are read at most, unless the query itself is longer."""
MAX_LAYERS = 20
"""A reply with more layers than these around it holds no query."""

_TAG = r"(?:query|rewrite|rewritten(?:_query)?|output|answer)(?:-[0-9a-f]{8})?>"
_COURTESY = (
    r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|great(?: question)?|no problem"
    r"|understood|got it)"
)
_HERE = r"(?:here(?:['\u2019]s| is| are)|below is|i(?:['\u2019]ve| have) re\w+)"
_REWRITTEN = r"(?:re-?written|reworded|rephrased|paraphrased|revised)"
_NAME = (
    rf"(?:(?:the|an?|your|my) )?(?:(?:{_REWRITTEN}|new|final|possible|modified|updated|improved"
    r"|alternative|shortened|shorter|concise|expanded|longer|simplified|simpler|formal"
    r"|formali[sz]ed|polite|passive|voice|clarified|clearer|combined|merged|similar|original"
    r"|query|queries|question|request|prompt|version|rewrite|rewording|rephrasing|paraphrase|\d)"
    r"\b ?){1,4}"
)
_LABEL = rf"[*_`# ]*{_NAME}[*_`]*(?:(?:is|could be|would be)[*_`]*)?(?::[*_`]*|\n)"
_MARKER = r"(?:#{1,6}|>|[-*+\u2022]|\(?\d{1,2}[.)])[ \t]+"
_EXPLANATION = (
    r"\s\(note:[^()]*\)\Z"
    r"|\n[ \t(*_]*(?:note|explanation|reason(?:ing)?|changes?(?: made)?|original(?: query)?"
    r"|rationale)\b[*_]*:.*\Z"
)
_LATER_PARAGRAPHS = r"(?<=[^:\s])[^\S\n]*+\n[^\S\n]*\n.*\Z"
_PATTERNS = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"\A<\|[^|<>]{1,40}\|>|(?:<\|[^|<>]{1,40}\|>.*|</s>)\Z",
        rf"\A(?:.*(?:\n|: ))?<{_TAG}\s*+(?P<inside>\S.*?)(?:</{_TAG}.*)?\Z",
        rf"</{_TAG}\s*(?:\n.*)?\Z",
        rf"\A.*?\n(?=[*_`# ]*(?:the )?{_REWRITTEN}(?: query| question| version)?[*_`]*:)",
        rf"\A[*_` ]*(?:{_COURTESY}|{_HERE})\b[^\n?:]{{0,120}}(?::[*_`]*|\n)",
        rf"\A{_COURTESY}!+\s+",
        rf"\A{_LABEL}",
        rf"\A[^\n]{{0,200}}\b{_REWRITTEN} as:?\s*(?P<inside>[\"\u201c][^\n]+[\"\u201d])\.?\Z",
        r"\A```\w*\n(?P<inside>.*?)(?:\n?```.*)?\Z",
        r"\A(?P<mark>`{1,3}|\*{1,3}|_{1,3})(?P<inside>[^`*_\n]+)(?P=mark)\Z",
        rf"\A(?:{_MARKER})+(?P<inside>[^\n]+).*\Z",
        _LATER_PARAGRAPHS,
        _EXPLANATION,
        r"\A\"(?P<inside>(?:[^\"]|(?<=[\s(])\"[^\"]++\")*+)(?:\"[.,]?)?\Z",
        r"\A[\u201c\u201e](?P<inside>[^\u201c\u201d\u201e]+)(?:[\u201c\u201d][.,]?)?\Z",
        r"\A[\u2018'](?P<inside>(?:[^\u2018\u2019']|(?<=\w)[\u2019'](?=\w))+)[\u2019'][.,]?\Z",
    )
)


def clean(text: str, query: str) -> str:
    """The one query in a model's reply, without what the model put around it.

    A list gives its first item, repeated tags their last content; nothing is left of a reply that
    holds no query. Whatever the query looks like, `clean(query, query) == query.strip()`; what is
    clean stays as it is.

    Args:
        text: the reply to a prompt that asked for a rewrite alone.
        query: the query that the rewrite was asked for.
    """
    query = query.strip()
    patterns = [pattern for pattern in _PATTERNS if _without(pattern, query) == query]
    if re.search(r"\n[^\S\n]*\n", query):
        patterns = [pattern for pattern in patterns if pattern.pattern != _LATER_PARAGRAPHS]
    text = text.strip()[: max(MAX_CHARS, len(query))].strip()
    for _ in range(MAX_LAYERS):
        before = text
        for pattern in patterns:
            text = _without(pattern, text)
        if text == before:
            return text
    return ""


def _without(pattern: re.Pattern[str], text: str) -> str:
    """The text without what the pattern finds, or what it finds inside."""
    match = pattern.search(text)
    if match is None:
        return text
    inside = match.groupdict().get("inside")
    rest = text[: match.start()] + text[match.end() :] if inside is None else inside
    return rest.strip()
