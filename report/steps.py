"""The transitions of a run for its page: columns, in which equal texts stand once."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CHARS = 2_000
"""Characters of a text that are on the page; the others are in transitions.jsonl alone."""
TEXTS = (
    *("original_query", "query_before", "mutated_query", "reply", "mutator", "outcome"),
    *("rejected", "error", "category", "mission", "team", "guard", "reward_parts"),
)
"""Columns of places in `texts`; `reward_parts` is JSON."""
NUMBERS = (
    *("row", "lane", "episode_number", "step_number", "attempt", "reward", "intent_similarity"),
    *("prompt_tokens", "completion_tokens", "adopted", "success", "unscored", "reply_truncated"),
)
DIGITS = 4


class Transitions:
    """Keeps the last `most` transitions of a run.

    An evaluation's say what its missions and teams are called by their numbers.
    """

    def __init__(self, missions: Sequence[str], teams: Sequence[str], most: int) -> None:
        self._missions, self._teams = missions, teams
        self._kept: deque[dict[str, Any]] = deque(maxlen=most)
        self.count = 0
        """All that were added: the number of the last line of transitions.jsonl."""

    def add(self, t: Mapping[str, Any], category: str) -> None:
        """Add the next line; `category` is that of its query."""
        self.count += 1
        kind = "partly refused" if t["partial"] else t["outcome"]
        kind = "undetermined" if t["undetermined"] else kind
        texts = {
            **t,
            "outcome": "unscored" if t["unscored"] else kind,
            "error": t["not_hashed"]["error_message"] or t["error"],
            "category": category,
            "mission": _name(t.get("mission"), self._missions),
            "team": _name(t.get("team"), self._teams),
            "guard": "to be refused" if t.get("guard") else "",
            "reward_parts": json.dumps(t["reward_parts"]),
        }
        kept: dict[str, Any] = {name: round(t[name], DIGITS) for name in NUMBERS}
        kept |= {name: (texts[name][:MOST_CHARS], len(texts[name])) for name in TEXTS}
        self._kept.append(kept)

    def __len__(self) -> int:
        return len(self._kept)

    def data(self, href: str) -> dict[str, Any]:
        """What the page's scripts show; `href` is where transitions.jsonl is from the page."""
        texts: dict[tuple[str, int], int] = {}
        columns = {
            name: [texts.setdefault(t[name], len(texts)) for t in self._kept] for name in TEXTS
        }
        columns |= {name: [t[name] for t in self._kept] for name in NUMBERS}
        return {
            "columns": columns,
            "texts": [text for text, _ in texts],
            "cut": {place: n for (text, n), place in texts.items() if n > len(text)},
            "first_line": self.count - len(self._kept) + 1,
            "href": href,
        }


def _name(number: int | None, names: Sequence[str]) -> str:
    """What a mission or a team is called; an evaluation that was killed has no names of teams."""
    return "" if number is None else names[number] if number < len(names) else str(number)
