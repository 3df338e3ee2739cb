"""Encoders: unit rows, the same for a text in any company, and no text encoded twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import (
    CachedEncoder,
    Encoder,
    HashingEncoder,
    OllamaEncoder,
    make_encoder,
)
from ollama_utils.errors import (
    BadReplyError,
    CallCancelledError,
    EncodingError,
    ModelMissingError,
    UnknownEncoderError,
)
from ollama_utils.parallel import map_parallel
from ollama_utils.types import unit_rows
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S, start, wait_until

TEXTS = st.lists(st.text(st.characters(codec="utf-8")), max_size=8)


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=9))
def test_unit_rows_have_length_one_and_do_not_depend_on_their_neighbours(
    rows: list[list[float]],
) -> None:
    together = unit_rows(rows)
    np.testing.assert_allclose(np.linalg.norm(together.astype(np.float64), axis=1), 1.0, rtol=1e-6)
    for row, one in zip(together, rows, strict=True):
        np.testing.assert_array_equal(row, unit_rows([one])[0])


@given(TEXTS, st.sampled_from([1, 16, 384]))
def test_hashing_gives_unit_rows_that_do_not_depend_on_the_other_texts(
    texts: list[str], dimension: int
) -> None:
    encoder = HashingEncoder(dimension)
    rows = encoder.encode(texts)
    assert rows.shape == (len(texts), dimension)
    assert rows.dtype == np.float32
    for row, text in zip(rows, texts, strict=True):
        np.testing.assert_array_equal(row, encoder.encode([text])[0])
        assert np.linalg.norm(row.astype(np.float64)) == pytest.approx(1.0, rel=1e-6)


def test_hashing_gives_the_same_numbers_in_every_process_and_release() -> None:
    row = HashingEncoder(8).encode(["How do I kill a process?"])[0]
    expected = [-0.25, 0.0, -0.5, 0.25, 0.25, 0.25, 0.5, -0.5]
    np.testing.assert_allclose(row, expected, atol=1e-6)


def test_texts_that_share_words_are_nearer_than_texts_that_do_not() -> None:
    rows = HashingEncoder().encode(
        ["How do I kill a Python process?", "how can i kill a python process", "A recipe for bread"]
    )
    assert rows[0] @ rows[1] > 0.7
    assert rows[0] @ rows[2] < 0.3


@pytest.mark.parametrize("text", ["", " \n", "?!"])
def test_a_text_without_words_has_a_fixed_row(text: str) -> None:
    assert HashingEncoder(4).encode([text]).tolist() == [[1.0, 0.0, 0.0, 0.0]]


class CountingEncoder(HashingEncoder):
    """Remembers what it was asked to encode; may fail, and may be made to wait."""

    def __init__(self) -> None:
        super().__init__(16)
        self.asked: list[str] = []
        self.error: BaseException | None = None
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked.extend(texts)
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return super().encode(texts)


@given(st.lists(TEXTS, max_size=6), st.integers(1, 8))
def test_known_texts_are_never_encoded_twice_whoever_asks(
    batches: list[list[str]], workers: int
) -> None:
    counting = CountingEncoder()
    cached = CachedEncoder(counting)
    for rows, batch in zip(map_parallel(cached.encode, batches, workers), batches, strict=True):
        np.testing.assert_array_equal(rows, HashingEncoder(16).encode(batch))
    distinct = {text for batch in batches for text in batch}
    assert sorted(counting.asked) == sorted(distinct)
    assert cached.hits == sum(map(len, batches)) - len(distinct)


def test_equal_texts_on_two_threads_are_encoded_once() -> None:
    counting = CountingEncoder()
    counting.go_on.clear()
    cached = CachedEncoder(counting)
    first = start(lambda: cached.encode(["a", "b"]))
    assert counting.begun.wait(PATIENCE_S)
    second = start(lambda: cached.encode(["b", "a"]))
    counting.go_on.set()
    np.testing.assert_array_equal(first.result(PATIENCE_S), second.result(PATIENCE_S)[::-1])
    assert counting.asked == ["a", "b"]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_failed_encoding_is_told_to_all_who_wait_and_not_remembered(error: BaseException) -> None:
    counting = CountingEncoder()
    counting.error = error
    counting.go_on.clear()
    cached = CachedEncoder(counting)
    first = start(lambda: cached.encode(["a"]))
    assert counting.begun.wait(PATIENCE_S)
    second = start(lambda: cached.encode(["a"]))
    wait_until(lambda: cached.hits == 1)
    counting.go_on.set()
    assert first.exception(PATIENCE_S) is error
    told = second.exception(PATIENCE_S)
    if isinstance(error, RuntimeError):
        assert told is error
    else:
        assert isinstance(told, EncodingError)
        assert isinstance(told.failures[0], CallCancelledError)
    counting.error = None
    assert cached.encode(["a"]).shape == (1, 16)


@pytest.mark.parametrize("failed", [False, True])
def test_an_encoder_that_loses_a_row_leaves_no_one_waiting(*, failed: bool) -> None:
    class Losing(HashingEncoder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            rows = super().encode(texts)[1:]
            if failed:
                raise EncodingError(rows, {0: BadReplyError("lost")})
            return rows

    cached = CachedEncoder(Losing(4))
    for texts in (["a", "b"], ["b"]):
        told = start(partial(cached.encode, texts)).exception(PATIENCE_S)
        assert isinstance(told, ValueError)
        assert f"expected {len(texts)} rows of encoder 'hashing:4', got {len(texts) - 1}" in str(
            told
        )


def test_the_cache_forgets_the_text_unused_for_longest() -> None:
    counting = CountingEncoder()
    cached = CachedEncoder(counting, size=2)
    for text in "abac":
        cached.encode([text])
    cached.encode(["a"])
    cached.encode(["b"])
    assert "".join(counting.asked) == "abcb"


def test_what_a_caller_does_to_its_rows_does_not_reach_the_cache() -> None:
    cached = CachedEncoder(HashingEncoder(4))
    cached.encode(["a"])[:] = 7.0
    assert cached.encode(["a"]).max() <= 1.0


def test_an_ollama_encoder_asks_in_chunks_and_not_for_blank_texts() -> None:
    def handler(body: dict[str, list[str]]) -> tuple[int, object]:
        return 200, {
            "model": "m",
            "embeddings": [[float(len(text)), 2.0, 0.0] for text in body["input"]],
        }

    texts = ["x" * length for length in range(70)]
    with ScriptedServer(handler) as server, Dispatcher([server.host]) as dispatcher:
        encoder = OllamaEncoder(dispatcher, "m")
        rows = encoder.encode(texts)
    assert encoder.dimension == 3
    assert [len(body["input"]) for body in server.bodies] == [1, 32, 32, 5]
    np.testing.assert_array_equal(rows[0], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(rows[1:, 0] / rows[1:, 1], np.arange(1, 70) / 2.0, rtol=1e-6)


def embedding(body: dict[str, list[str]]) -> tuple[int, object]:
    """A server that refuses texts over ten characters, fails at `crash`, and computes `nan` badly."""
    texts = body["input"]
    if any(len(text) > 10 for text in texts):
        return 400, {"error": f"{max(map(len, texts))} characters exceed the context length"}
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
        failures = {
            place: (type(failure), str(failure)) for place, failure in error.failures.items()
        }
        return [failures.get(place, tuple(row)) for place, row in enumerate(error.rows)]


@pytest.fixture(scope="module")
def embedder() -> Iterator[ScriptedServer]:
    with ScriptedServer(embedding) as server:
        yield server


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["a", "bc", "", "crash", "nan", "x" * 11, "y" * 12]), max_size=40))
def test_a_batch_gives_each_text_the_row_or_the_error_that_it_gets_alone(
    embedder: ScriptedServer, texts: list[str]
) -> None:
    with Dispatcher([embedder.host], attempts=1) as dispatcher:
        encoder = OllamaEncoder(dispatcher, "m")
        alone = {text: outcomes(encoder, [text])[0] for text in texts}
        expected = [alone[text] for text in texts]
        assert outcomes(encoder, texts) == outcomes(CachedEncoder(encoder), texts) == expected


@pytest.mark.parametrize(
    "answer", [(500, {"error": "crash"}), (400, {"error": "no"}), (200, {"embeddings": []})]
)
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
    assert [len(body["input"]) for body in server.bodies] == [1, 32, 1, 8]
    assert list(caught.value.failures) == list(range(32))
    assert len(set(caught.value.failures.values())) == 1
    np.testing.assert_allclose(caught.value.rows[32:, 0] / caught.value.rows[32:, 1], 1.0)


def test_how_many_requests_a_server_gets_does_not_depend_on_who_asks_when() -> None:
    with ScriptedServer(embedding) as server, Dispatcher([server.host]) as dispatcher:
        encoder = make_encoder("ollama:m", dispatcher)
        encoder.prefetch(["may not be needed"])
        map_parallel(lambda text: encoder.encode([text]), list("abcabdce"))
    assert sorted(body["input"] for body in server.bodies[1:]) == [
        ["a"],
        ["b"],
        ["c"],
        ["d"],
        ["e"],
    ]


def test_an_embedding_model_of_a_server_is_an_encoder(
    quick: Dispatcher, server: EmbeddedServer
) -> None:
    encoder = make_encoder("ollama:sim-embed", quick)
    assert encoder.name == "ollama:sim-embed"
    np.testing.assert_array_equal(encoder.encode(["a", "b"])[1:], encoder.encode(["b"]))
    assert server.stats()["calls"] == 2, "one to learn the dimension, one for both texts"
    with pytest.raises(ModelMissingError, match="ollama pull nobody"):
        make_encoder("ollama:nobody", quick)


@pytest.mark.parametrize("odd", [1, 3])
def test_embeddings_of_another_length_than_at_first_are_a_bad_reply(odd: int) -> None:
    lengths = iter((4, odd))

    def handler(body: dict[str, list[str]]) -> tuple[int, object]:
        return 200, {"model": "m", "embeddings": [[1.0] * next(lengths) for _ in body["input"]]}

    with ScriptedServer(handler) as server, Dispatcher([server.host]) as dispatcher:
        encoder = OllamaEncoder(dispatcher, "m")
        with pytest.raises(EncodingError, match=f"of length {odd}; expected 4") as caught:
            encoder.encode(["text"])
    assert isinstance(caught.value.failures[0], BadReplyError)


def test_a_dimension_of_many_digits_is_an_error_that_does_not_repeat_them() -> None:
    with pytest.raises(UnknownEncoderError) as caught:
        make_encoder("hashing:" + "9" * 5000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["hashing:", "hashing", "hashing:384"])
def test_hashing_has_384_buckets_unless_told_otherwise(name: str) -> None:
    assert make_encoder(name).dimension == 384


@pytest.mark.parametrize(
    "name", ["hashing:0", "hashing:many", "hashing:-1", "hashing:65537", "ollama:", "ollama:m"]
)
def test_a_name_that_means_nothing_is_an_error_in_one_line(name: str) -> None:
    with pytest.raises(UnknownEncoderError, match=f"encoder '{name}'") as caught:
        make_encoder(name)
    assert "\\n" not in str(caught.value)
