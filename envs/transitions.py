"""A step as a line of transitions.jsonl: how it is written, and checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from scorers.reward import Outcome

_TOKENS, _TIMES = ("prompt_tokens", "completion_tokens"), ("queue_s", "total_s")
USAGE = (*_TOKENS, *_TIMES)
"""What a step's info has as `usage`: tokens and seconds of its calls together."""
Kinds = Mapping[str, type]
_RECORDED: Kinds = {
    **dict.fromkeys(("episode_number", "step_number", "attempt"), int),
    **dict.fromkeys(("original_query", "query_before", "mutator", "mutated_query"), str),
    **dict.fromkeys(("rejected", "reply", "outcome"), str),
    **dict.fromkeys(("adopted", "guard", "reply_truncated", "partial", "undetermined"), bool),
    **dict.fromkeys(("success", "unscored"), bool),
    **dict.fromkeys(("intent_similarity", "reward"), float),
    "reward_parts": dict,
}
"""The keys of a step's info that its line has as they are, and their types."""
_ADDED: Kinds = {
    **dict.fromkeys(("row", "lane", *_TOKENS), int),
    **dict.fromkeys(("terminated", "truncated"), bool),
    "error": str,
    "not_hashed": dict,
}
"""The other keys of a line."""
_NOT_HASHED: Kinds = {**dict.fromkeys(_TIMES, float), "error_message": str}


def transition_record(
    row: int, lane: int, info: Mapping[str, Any], *, terminated: bool, truncated: bool
) -> dict[str, Any]:
    """The line of a step. `not_hashed` is all that may differ between two equal runs.

    An error's class is hashed, its message, which names the host, is not.
    """
    usage = info["usage"]
    return {
        "row": row,
        "lane": lane,
        **{name: info[name] for name in _RECORDED},
        "error": info["error"].partition(":")[0],
        "terminated": bool(terminated),
        "truncated": bool(truncated),
        **{name: int(usage[name]) for name in _TOKENS},
        "not_hashed": {name: usage[name] for name in _TIMES} | {"error_message": info["error"]},
    }


def recorded_usage(line: Mapping[str, Any]) -> dict[str, float]:
    """The `usage` of a step's info from its line."""
    table = {**line, **line["not_hashed"]}
    return {name: float(table[name]) for name in USAGE}


def check_transition(line: Mapping[str, Any]) -> None:
    """Check that a line has all that `transition_record` writes, each of its kind.

    Raises:
        ValueError: it has not; the message names the key.
    """
    _check(line, {**_RECORDED, **_ADDED})
    _check(line["not_hashed"], _NOT_HASHED)
    _check(line["reward_parts"], dict.fromkeys(line["reward_parts"], float))
    if line["outcome"] not in get_args(Outcome):
        expected = ", ".join(get_args(Outcome))
        raise ValueError(f"'outcome': expected one of {expected}, got {line['outcome']!r:.40}")


def _check(table: Mapping[str, Any], kinds: Kinds) -> None:
    for key, kind in kinds.items():
        value: Any = table.get(key)
        fits = type(value) is kind or (kind is float and type(value) is int)
        if fits and kind in {int, float}:  # what JSON has of numbers, and a float of whole ones
            fits = (0 if kind is int else -(2**53)) <= value <= 2**53
        if not fits:
            raise ValueError(f"{key!r:.80}: expected {kind.__name__}, got {value!r:.40}")
