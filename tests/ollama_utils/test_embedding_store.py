"""Embeddings on disk: the same bits, and no text encoded twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.encoders import CachedEncoder, HashingEncoder, StoredEncoder
from ollama_utils.errors import ReplyLogError


class Counting(HashingEncoder):
    """Hashing in passes, which remembers what it was asked."""

    pass_size = 4

    def __init__(self, dimension: int = 16) -> None:
        super().__init__(dimension)
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        return super().encode(texts)

    def shapes(self, texts: Sequence[str]) -> list[int]:
        return [len(text) > 5 for text in texts]


@given(first=st.lists(st.text(max_size=9), max_size=6), second=st.lists(st.text(max_size=9), max_size=6))
def test_a_later_run_gets_the_same_bits_and_encodes_only_what_is_new(
    tmp_path_factory: pytest.TempPathFactory, first: list[str], second: list[str]
) -> None:
    path = tmp_path_factory.mktemp("store") / "embeddings.sqlite"
    CachedEncoder(StoredEncoder(Counting(), path)).encode(first)
    later = Counting()
    encoder = CachedEncoder(StoredEncoder(later, path))
    later.asked.clear()  # the sample
    assert encoder.encode(second).tobytes() == HashingEncoder(16).encode(second).tobytes()
    assert sorted(later.asked) == sorted(set(second) - set(first))


def test_other_weights_find_nothing(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.sqlite"
    StoredEncoder(Counting(16), path).encode(["a text"])
    other = Counting(32)
    other.name = "hashing:16"
    assert StoredEncoder(other, path).encode(["a text"]).shape == (1, 32)


def test_a_file_that_is_no_database_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.sqlite"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 9)
    with pytest.raises(ReplyLogError, match=r"embeddings\.sqlite.* delete it: .* is encoded again"):
        StoredEncoder(Counting(), path)
