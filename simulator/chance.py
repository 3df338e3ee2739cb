"""Chance that depends on content alone: blake2b digests in place of a random generator."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")

_BITS = 53
"""What a float holds exactly, so that no draw is rounded up to 1."""
_PLACES = float(1 << _BITS)


def digest_of(*parts: object) -> bytes:
    """Sixteen bytes that stand for all parts: equal parts, equal bytes, on every machine."""
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def share_of(digest: bytes, purpose: str) -> float:
    """A number in [0, 1) drawn from a digest; each purpose draws its own."""
    drawn = blake2b(purpose.encode("utf-8", "surrogatepass"), digest_size=8, key=digest).digest()
    return (int.from_bytes(drawn, "big") >> (64 - _BITS)) / _PLACES


def pick(options: Sequence[T], digest: bytes, purpose: str) -> T:
    """One of the options, drawn from a digest."""
    return options[int(share_of(digest, purpose) * len(options))]
