"""Log probabilities of a reply's tokens: drawn, since there is no model; well-formed and repeatable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ollama_utils.simulator.chance import share_of

_LEAST_CHANCE = 0.4
"""Of the token that is chosen: an assumption, as is that each other one has half of what is left."""
_WORDS = "the a and of to in is that it for with as on this be are or by an not you"
_OTHERS = tuple(f" {word}" for word in _WORDS.split())


def logprob(digest: bytes, top: int, text: str, place: int) -> dict[str, Any]:
    """The entry of a token.

    Args:
        digest: stands for the reply.
        top: how many of the likeliest tokens are listed beside it; the token itself is the first.
        text: the token's.
        place: the token's, counted from 0.
    """
    chance = _LEAST_CHANCE + (1 - _LEAST_CHANCE) * share_of(digest, f"logprob {place}")
    entry = _entry(text, chance)
    if top:
        entry["top_logprobs"] = [_entry(text, chance), *_runners_up(text, chance, top - 1)]
    return entry


def _runners_up(text: str, chance: float, count: int) -> Sequence[dict[str, Any]]:
    """Other tokens: each has half of what the likelier ones left over, and less than the chosen one."""
    others = [other for other in _OTHERS if other != text][:count]
    rest = min(1 - chance, chance)
    return [_entry(other, rest * 0.5 ** (place + 1)) for place, other in enumerate(others)]


def _entry(text: str, chance: float) -> dict[str, Any]:
    codes = {"bytes": list(text.encode("utf-8", "replace"))} if text else {}
    return {"token": text, "logprob": math.log(chance), **codes}
