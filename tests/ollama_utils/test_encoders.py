"""Encoders: unit rows, the same for a text in any company, and no text encoded twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import (
    MOST_BYTES,
    CachedEncoder,
    Encoder,
    HashingEncoder,
    OllamaEncoder,
    make_encoder,
    pieces,
)
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    EncodingError,
    UnknownEncoderError,
)
from ollama_utils.parallel import map_parallel
from ollama_utils.reply_log import ReplyLog, as_json, question_of
from ollama_utils.types import Call, Completion
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, interrupted_once, start

UNICODE = st.characters(codec="utf-8")
SHORT = st.text(UNICODE, max_size=20)
LONG = st.integers(1, 900).flatmap(
    lambda count: st.text(UNICODE | st.sampled_from(" \n"), min_size=1, max_size=4).map(
        lambda part: part * count
    )
)
TEXTS = st.lists(SHORT | LONG, max_size=8)


@pytest.fixture(scope="module")
def makers(simulator: EmbeddedServer) -> Iterator[list[Callable[[], Encoder]]]:
    """Ways to an encoder that remembers nothing yet."""
    with Dispatcher([simulator.host], memory_bytes=0) as dispatcher:
        yield [
            lambda: make_encoder("hashing:16"),
            lambda: make_encoder("ollama:sim-embed", dispatcher),
        ]


@settings(max_examples=15)
@given(batches=st.lists(TEXTS, max_size=4), workers=st.integers(1, 8))
def test_a_text_has_the_same_bits_alone_and_in_any_company_on_any_thread(
    makers: list[Callable[[], Encoder]], batches: list[list[str]], workers: int
) -> None:
    for make in makers:
        shared = make()
        alone = make()
        for rows, batch in zip(map_parallel(shared.encode, batches, workers), batches, strict=True):
            assert rows.shape == (len(batch), shared.dimension)
            assert rows.dtype == np.float32
            np.testing.assert_allclose(np.linalg.norm(rows.astype(np.float64), axis=1), 1, 1e-6)
            for row, text in zip(rows, batch, strict=True):
                assert row.tobytes() == alone.encode([text])[0].tobytes()


def test_hashing_gives_the_same_numbers_in_every_process_and_release() -> None:
    row = HashingEncoder(8).encode(["How do I kill a process?"])[0]
    expected = [-0.25, 0.0, -0.5, 0.25, 0.25, 0.25, 0.5, -0.5]
    np.testing.assert_allclose(row, expected, atol=1e-6)


@pytest.mark.parametrize("text", ["", " \n", "?!", "\n" * 2000])
def test_a_text_without_words_has_a_fixed_row(text: str) -> None:
    assert make_encoder("hashing:4").encode([text]).tolist() == [[1.0, 0.0, 0.0, 0.0]]


@given(SHORT | LONG)
def test_the_pieces_of_a_text_are_short_and_leave_out_nothing_but_blanks(text: str) -> None:
    cut = pieces(text)
    assert all(len(piece.encode()) <= MOST_BYTES for piece in cut)
    assert "".join("".join(cut).split()) == "".join(text.split())
    if len(text.encode()) <= MOST_BYTES:
        assert cut == [text]
    else:
        assert all(cut) or not text.strip()


class CountingEncoder(HashingEncoder):
    """Remembers what it encoded; may fail, and may be made to wait."""

    def __init__(self, dimension: int = 16) -> None:
        super().__init__(dimension)
        self.encoded: list[str] = []
        self.error: Exception | None = None
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.encoded.extend(texts)
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return super().encode(texts)


def test_equal_texts_on_two_threads_are_encoded_once() -> None:
    counting = CountingEncoder()
    counting.go_on.clear()
    cached = CachedEncoder(counting)
    first = start(lambda: cached.encode(["a", "b"]))
    assert counting.begun.wait(PATIENCE_S)
    second = start(lambda: cached.encode(["b", "a"]))
    counting.go_on.set()
    np.testing.assert_array_equal(first.result(PATIENCE_S), second.result(PATIENCE_S)[::-1])
    assert counting.encoded == ["a", "b"]


def test_what_breaks_an_encoding_is_raised_and_not_remembered() -> None:
    counting = CountingEncoder()
    cached = CachedEncoder(counting)
    no_row = EncodingError(np.zeros((1, 16), dtype=np.float32), {0: BadReplyError("no row")})
    for error in (RuntimeError("broken"), no_row):
        counting.error = error
        with pytest.raises(type(error)):
            cached.encode(["a"])
    counting.error = None
    assert cached.encode(["a"]).shape == (1, 16)


def test_an_interrupted_caller_leaves_no_one_waiting() -> None:
    counting = CountingEncoder()
    counting.go_on.clear()
    cached = CachedEncoder(counting)
    with interrupted_once(counting.begun.wait):
        cached.encode(["a"])
    counting.go_on.set()
    assert cached.encode(["a"]).shape == (1, 16)


def test_a_text_that_is_not_unicode_spoils_no_other() -> None:
    with pytest.raises(EncodingError) as caught:
        make_encoder("hashing:16").encode(["a", "\ud83d", "b"])
    assert {place: type(why) for place, why in caught.value.failures.items()} == {
        1: BadRequestError
    }
    expected = HashingEncoder(16).encode(["a", "b"])
    np.testing.assert_array_equal(caught.value.rows[[0, 2]], expected)


def test_what_a_caller_does_to_its_rows_does_not_reach_the_memory() -> None:
    cached = CachedEncoder(HashingEncoder(4))
    cached.encode(["a"])[:] = 7.0
    assert cached.encode(["a"]).max() <= 1.0


@settings(max_examples=15)
@given(first=TEXTS, second=TEXTS)
def test_a_later_run_finds_the_same_bits_and_encodes_only_what_is_new(
    tmp_path_factory: pytest.TempPathFactory, first: list[str], second: list[str]
) -> None:
    store = tmp_path_factory.mktemp("cache") / "replies.sqlite"
    question = question_of(Call(model="m", prompt="Why?", options={"seed": 1}))
    with ReplyLog(store, digests={}) as log:  # replies and rows share a file
        log.write(question, reply=as_json(Completion(text="Yes.")))
        CachedEncoder(CountingEncoder(), store=store).encode(first)
        later = CountingEncoder()
        encoder = CachedEncoder(later, store=store)
        later.encoded.clear()  # the sample
        assert (
            encoder.encode(second).tobytes() == make_encoder("hashing:16").encode(second).tobytes()
        )
        known, asked = (
            {part for text in some for part in pieces(text)} for some in (first, second)
        )
        assert sorted(later.encoded) == sorted(asked - known)
        assert log.find(question) is not None


def test_other_weights_find_nothing(tmp_path: Path) -> None:
    store = tmp_path / "replies.sqlite"
    CachedEncoder(CountingEncoder(), store=store).encode(["a text"])
    other = CountingEncoder(32)
    other.name = "hashing:16"
    assert CachedEncoder(other, store=store).encode(["a text"]).shape == (1, 32)
    assert other.encoded[-1] == "a text"


def embedding(body: dict[str, list[str]]) -> tuple[int, object]:
    """A server that refuses `long`, fails at `crash`, and computes `nan` badly."""
    texts = body["input"]
    if "long" in texts:
        return 400, {"error": "the input length exceeds the context length"}
    if "crash" in texts:
        return 500, {"error": "json: unsupported value: NaN"}
    return 200, {
        "embeddings": [[float("nan") if text == "nan" else len(text), 2.0] for text in texts]
    }


def outcomes(encoder: Encoder, texts: list[str]) -> list[object]:
    """Each text's row, or the kind and words of its error."""
    try:
        return [tuple(row) for row in encoder.encode(texts)]
    except EncodingError as error:
        failures = {place: (type(why), str(why)) for place, why in error.failures.items()}
        return [failures.get(place, tuple(row)) for place, row in enumerate(error.rows)]


@pytest.fixture(scope="module")
def embedder() -> Iterator[ScriptedServer]:
    with ScriptedServer(embedding) as server:
        yield server


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["a", "bc", "", "crash", "nan", "long", "y" * 600]), max_size=40))
def test_one_failure_spoils_one_text(embedder: ScriptedServer, texts: list[str]) -> None:
    with Dispatcher([embedder.host], attempts=1) as dispatcher:
        encoder = make_encoder("ollama:m", dispatcher)
        alone = {text: outcomes(encoder, [text])[0] for text in texts}
        assert outcomes(encoder, texts) == [alone[text] for text in texts]
        for text in {"crash", "nan", "long"} & set(texts):
            (within,) = outcomes(encoder, [f"{'a ' * 300}\n\n{text}"])
            assert within == alone[text], "so does a piece of it"


EXCHANGED = {"embeddings": [[1.0]] * 32}
"""As another model embeds."""


@pytest.mark.parametrize("answer", [(500, {"error": "crash"}), (400, {}), (200, EXCHANGED)])
def test_a_server_that_is_down_is_not_asked_text_by_text_and_spoils_no_later_chunk(
    answer: tuple[int, object],
) -> None:
    down = (2, 3)  # the first chunk, and the text that the server embedded at the start

    def handler(body: dict[str, list[str]]) -> tuple[int, object]:
        return answer if len(server.bodies) in down else embedding(body)

    with ScriptedServer(handler) as server, Dispatcher([server.host], attempts=1) as dispatcher:
        encoder = OllamaEncoder(dispatcher, "m")
        with pytest.raises(EncodingError) as caught:
            encoder.encode([str(number) for number in range(40)])
    assert [len(body["input"]) for body in server.bodies] == [1, 32, 1, 8], "in chunks"
    assert list(caught.value.failures) == list(range(32))
    np.testing.assert_allclose(caught.value.rows[32:, 0] / caught.value.rows[32:, 1], 1.0)


@pytest.mark.parametrize("name", ["hashing:0", "hashing:many", "hashing:65537", "ollama:"])
def test_a_name_that_means_nothing_is_an_error(name: str) -> None:
    with pytest.raises(UnknownEncoderError, match=r"^encoder .*expected"):
        make_encoder(name)
