"""What a model holds of a text: how many tokens it counts, and which part of it is read."""

from __future__ import annotations

from ollama_utils.simulator.wire import ApiError

CONTEXT_TOKENS = 4096
"""The most tokens that a model reads at once."""

_CHARACTERS_A_TOKEN = 4
"""An assumption."""


def context_tokens(num_ctx: int) -> int:
    """The tokens of prompt and reply that a model holds; `num_ctx` of 0 or less asks for all it can."""
    return min(num_ctx, CONTEXT_TOKENS) if num_ctx > 0 else CONTEXT_TOKENS


def count_tokens(text: str, num_ctx: int, *, more: int = 0, truncate: bool = True) -> int:
    """About how many tokens of a text are read: those that the context holds.

    Args:
        text: what a request brings.
        num_ctx: as in its options.
        more: tokens that come with the text.
        truncate: whether a longer text may be cut.

    Raises:
        ApiError: 400, it is longer and must not be cut.
    """
    count, most = -(-len(text) // _CHARACTERS_A_TOKEN) + more, context_tokens(num_ctx)
    if count > most and not truncate:
        raise ApiError(400, "the input length exceeds the context length")
    return min(count, most)


def read_part(text: str) -> str:
    """The part of a text that a model reads at all: its end, where the question of a long prompt stands."""
    return text[-_CHARACTERS_A_TOKEN * CONTEXT_TOKENS :]
