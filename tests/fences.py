"""Reads the fences of a prompt as strictly as they are written."""

from __future__ import annotations

import re
from itertools import groupby

_FENCE = re.compile(r"<([a-z]+)(-[0-9a-f]{8}|)>(.*?)</\1\2>", re.DOTALL)


def in_fences(prompt: str) -> list[dict[str, str]]:
    """The texts by the names of their fences, in their order, for each boundary in turn."""
    found = [(match[2], match[1], match[3]) for match in _FENCE.finditer(prompt)]
    return [
        {name: text for _, name, text in group}
        for _, group in groupby(found, key=lambda each: each[0])
    ]
