"""What mutagym's prompts show between tags: `<query>`, or with a boundary, `<query-1a2b3c4d>`.

A tag with a boundary is closed by the tag with the same boundary alone: what stands between may
hold any other tag. A boundary is no part of what is asked, so replies and faults are drawn as with
bare tags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TAG = re.compile(r"(</?[a-z]+)-[0-9a-f]{8}>")
_NOTE = re.compile(r"<!-- [^<>\n]{1,60}\b[0-9a-f]{8}\b[^<>\n]{1,60} -->(?:\n|\\n)")
_PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a prompt asks of the mutator."""

    instruction: str
    query: str
    other: str | None = None
    failures: str = ""
    """Problems that were got wrong under the query's instructions, as they are shown."""
    is_tagged: bool = True


def shown(name: str, prompt: str) -> str | None:
    """The last text between tags of a name; None without any."""
    found = _last(name, prompt)
    return found and found["text"].strip()


def task_of(prompt: str, system: str = "") -> Task:
    """The instruction and the query; without tags the last paragraph is the query."""
    prompt = f"{system}\n\n{prompt}" if system else prompt
    tagged = _last("query", prompt)
    if tagged is None:
        parts = [part.strip() for part in _PARAGRAPH.split(prompt) if part.strip()]
        return Task(instruction=prompt, query=parts[-1] if parts else "", is_tagged=False)
    return Task(
        instruction=prompt[: tagged.start()],
        query=tagged["text"].strip(),
        other=shown("other", prompt),
        failures=shown("failures", prompt) or "",
    )


def query_of(prompt: str) -> str:
    """What the target reads of a prompt: the tagged query, or all of it."""
    query = shown("query", prompt)
    return prompt if query is None else query


def without_boundaries(text: str) -> str:
    """The text with bare tags, and without a note on them; the text may be JSON."""
    return _TAG.sub(r"\1>", _NOTE.sub("", text))


def _last(name: str, prompt: str) -> re.Match[str] | None:
    """Where the last text between tags of a name stands."""
    closed = rf"</{name}(?(boundary)(?P=boundary))>"
    fence = rf"(?s)<{name}(?P<boundary>-[0-9a-f]{{8}})?>(?P<text>.*?){closed}"
    return next(reversed(list(re.finditer(fence, prompt))), None)
