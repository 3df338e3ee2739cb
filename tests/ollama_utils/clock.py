"""A clock for tests of the rate limit, and what a bucket says by it."""

from __future__ import annotations

from ollama_utils.rate import TokenBucket


class Clock:
    """Stands still until it is moved."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def reserved(bucket: TokenBucket) -> float:
    """The moment of the next token, as long as nothing changes."""
    return bucket.due_s(bucket.reserve())
