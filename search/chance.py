"""Chance that depends on the seed and on what it decides, never on what was decided before."""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def seed_of(seed: int, *what: int | str) -> int:
    """A seed of its own for `what`, from 0 to 2^31 - 1: servers read a signed 32-bit number."""
    digest = blake2b(repr((seed, *what)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 2**31


def chance(seed: int, *what: int | str) -> Random:
    """A stream of chance of its own for `what`."""
    return Random(seed_of(seed, *what))
