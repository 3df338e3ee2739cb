"""One step as a line of transitions.jsonl, and what all calls so far cost; light to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_utils.dispatcher import Dispatcher


def account_totals(dispatcher: Dispatcher) -> dict[str, float]:
    """The dispatcher's accounts summed over models."""
    names = ("calls", "failures", "retries", "cache_hits", "prompt_tokens", "completion_tokens")
    seconds = ("queue_s", "busy_s")
    accounts = dispatcher.accounts().values()
    return {name: float(sum(getattr(account, name) for account in accounts)) for name in names + seconds}


def transition_record(
    row: int,
    lane: int,
    info: Mapping[str, Any],
    done: bool,  # noqa: FBT001 - SB3's flag
) -> dict[str, Any]:
    """One line of transitions.jsonl. `not_hashed` is all that may differ between two equal runs.

    An error's class is hashed, its message, which names the host, is not.
    """
    usage = info["usage"]
    tokens = {name: int(usage[name]) for name in ("prompt_tokens", "completion_tokens")}
    names = ("episode_number", "step_number", "attempt", "original_query", "query_before", "mutator")
    more = ("mutated_query", "adopted", "rejected", "reply", "reply_truncated", "outcome", "partial")
    last = ("intent_similarity", "success", "reward", "unscored")
    return {
        "row": row,
        "lane": lane,
        **{name: info[name] for name in names + more + last},
        "error": info["error"].partition(":")[0],
        "reward_parts": info.get("reward_parts", {}),
        "terminated": done and not info["TimeLimit.truncated"],
        "truncated": bool(info["TimeLimit.truncated"]),
        **tokens,
        "not_hashed": {
            **{name: usage[name] for name in ("queue_s", "total_s")},
            "error_message": info["error"],
        },
    }
