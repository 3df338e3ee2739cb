"""A step as a line of transitions.jsonl: how it is written, and checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from typing_extensions import TypedDict

from scorers.reward import Outcome

_TOKENS, _TIMES = ("prompt_tokens", "completion_tokens"), ("queue_s", "total_s")
USAGE = (*_TOKENS, *_TIMES)
"""What a step's info has as `usage`: tokens and seconds of its calls together."""
_RECORDED = (
    *("episode_number", "step_number", "attempt", "original_query", "query_before", "mutator"),
    *("mutated_query", "adopted", "rejected", "reply", "reply_truncated", "outcome", "partial"),
    *("undetermined", "intent_similarity", "success", "reward", "unscored", "reward_parts"),
)
"""The keys of a step's info that its line has as they are."""


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
        "not_hashed": {
            **{name: usage[name] for name in _TIMES},
            "error_message": info["error"],
        },
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
    from pydantic import ValidationError

    try:
        _adapter().validate_python(line, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place!r:.80}: {first['msg']}, got {first['input']!r:.40}") from error


@cache
def _adapter() -> Any:  # noqa: ANN401 - pydantic's adapter of a type that is made here
    """What checks a line; pydantic loads when it is first needed."""
    from pydantic import Field, TypeAdapter, with_config

    count = Annotated[int, Field(ge=0, le=2**53)]
    number = Annotated[float, Field(ge=-(2.0**53), le=2.0**53)]
    kinds: dict[str, Any] = {
        **dict.fromkeys(("row", "lane", "episode_number", "step_number", "attempt"), count),
        **dict.fromkeys(_TOKENS, count),
        **dict.fromkeys(("original_query", "query_before", "mutator", "mutated_query"), str),
        **dict.fromkeys(("rejected", "reply", "error"), str),
        **dict.fromkeys(("adopted", "reply_truncated", "partial", "undetermined"), bool),
        **dict.fromkeys(("success", "unscored", "terminated", "truncated"), bool),
        **dict.fromkeys(("intent_similarity", "reward"), number),
        "outcome": Outcome,
        "reward_parts": dict[str, number],
    }
    make: Any = TypedDict  # mypy knows it with literal keys alone
    kinds["not_hashed"] = make("Aside", {**dict.fromkeys(_TIMES, number), "error_message": str})
    return TypeAdapter(with_config({"extra": "allow"})(make("Line", kinds)))
