"""Chance that depends on content alone: blake2b digests in place of a random generator."""

from __future__ import annotations

from hashlib import blake2b

_UNIT = 2.0**-64


def digest_of(*parts: object) -> bytes:
    """Sixteen bytes that stand for all parts: equal parts, equal bytes, on every machine."""
    text = "\x1f".join(map(str, parts))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def share_of(digest: bytes, purpose: str) -> float:
    """A number in [0, 1) drawn from a digest; each purpose draws its own."""
    drawn = blake2b(purpose.encode(), digest_size=8, key=digest).digest()
    return int.from_bytes(drawn, "big") * _UNIT


def pick(options: tuple[str, ...], digest: bytes, purpose: str) -> str:
    """One of the options, drawn from a digest."""
    return options[int(share_of(digest, purpose) * len(options))]
