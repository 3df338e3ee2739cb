"""The transitions of a run for its page: columns, in which equal texts and rewards stand once."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TEXTS = (
    *("original_query", "query_before", "mutated_query", "reply", "mutator", "outcome", "rejected", "error"),
    *("category", "mission", "team"),
)
"""Columns that hold places in `texts`."""
NUMBERS = (
    *("row", "lane", "episode_number", "step_number", "attempt", "reward", "intent_similarity"),
    *("prompt_tokens", "completion_tokens"),
)
TRUTHS = ("adopted", "success", "unscored", "reply_truncated", "guard")
"""Columns that are the bits of `flags`, the first the lowest."""
DIGITS = 4


def as_columns(
    transitions: Iterable[Mapping[str, Any]],
    categories: Mapping[str, str],
    missions: Sequence[str],
    teams: Sequence[str],
    most: int,
) -> dict[str, Any]:
    """The last `most` of these transitions.

    Args:
        transitions: lines of transitions.jsonl.
        categories: that of each original query that has one.
        missions: what those of an evaluation are called; none of a training.
        teams: the same of its teams.
        most: as many are kept.
    """
    last: deque[Mapping[str, Any]] = deque(maxlen=most)
    total = 0
    for transition in transitions:
        last.append(transition)
        total += 1
    texts, parts = _Places(), _Places()
    columns: dict[str, list[Any]] = {name: [] for name in (*TEXTS, *NUMBERS, "flags", "parts", "episode")}
    for t in last:
        kind = "undetermined" if t.get("undetermined") else "partly refused" if t["partial"] else t["outcome"]
        named = {
            **t,
            "category": categories.get(t["original_query"], ""),
            "mission": _name(t, "mission", missions),
            "team": _name(t, "team", teams),
            "outcome": "unscored" if t["unscored"] else kind,
            "error": t["not_hashed"]["error_message"] or t["error"],
        }
        for name in TEXTS:
            columns[name].append(texts.place(named[name]))
        for name in NUMBERS:
            columns[name].append(round(t[name], DIGITS))
        columns["flags"].append(sum(bool(t.get(name)) << bit for bit, name in enumerate(TRUTHS)))
        columns["parts"].append(parts.place(json.dumps(t["reward_parts"])))
        columns["episode"].append(
            f"{t.get('mission', 0)}/{t.get('team', 0)}/{t['lane']}/{t['episode_number']}"
        )
    episodes = _Places()
    columns["episode"] = [episodes.place(episode) for episode in columns["episode"]]
    return {
        "total": total,
        "texts": texts.values(),
        "reward_parts": [json.loads(part) for part in parts.values()],
        "truths": TRUTHS,
        "columns": columns,
    }


class _Places:
    """Different texts, and where each stands among them."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def values(self) -> list[str]:
        return list(self._places)


def _name(t: Mapping[str, Any], key: str, names: Sequence[str]) -> str:
    number = t.get(key)
    return names[number] if isinstance(number, int) and 0 <= number < len(names) else ""
