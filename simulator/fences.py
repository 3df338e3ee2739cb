"""Texts that a prompt shows between tags: `<query>`, or with a boundary, `<query-1a2b3c4d>`.

A tag with a boundary is closed by the tag with the same boundary alone: what stands between them may hold any
other tag.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"(</?[a-z]+)-[0-9a-f]{8}>")
_NOTE = re.compile(r"<!-- [^<>\n]{1,60}\b[0-9a-f]{8}\b[^<>\n]{1,60} -->(?:\n|\\n)")


def fence(name: str) -> re.Pattern[str]:
    """Finds texts between tags of a name; the group `text` is what stands there."""
    return re.compile(
        rf"<{name}(?P<boundary>-[0-9a-f]{{8}})?>(?P<text>.*?)</{name}(?(boundary)(?P=boundary))>", re.DOTALL
    )


def without_boundaries(text: str) -> str:
    """The text with bare tags, and without a note on them: what a reply is drawn from.

    A boundary is no part of what is asked. The text may be JSON.
    """
    return _TAG.sub(r"\1>", _NOTE.sub("", text))
