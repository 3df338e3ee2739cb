"""Embeddings by a model of an Ollama server."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadReplyError, BadRequestError, EncodingError, OllamaError, ServerFaultError

_CHUNK = 32
_KNOWN_GOOD = ("dimension",)
_MAY_BE_OF_ONE_TEXT = (BadRequestError, ServerFaultError, BadReplyError)


class OllamaEncoder:
    """An embedding model of an Ollama server, asked for many texts at once.

    One text may spoil a request: an over-long one is rejected, one whose numbers are not finite makes
    the server fail or its reply unusable. So after such an error each text is asked for alone, and gets
    the row or the error that it gets alone; unless the server now fails at the text, too, that it
    embedded at the start. Then it is the server that is broken, and the request's error is that of all
    its texts, as it is when the server is away, busy or late.

    Texts of several threads are not put into one request. A server embeds one text after another anyway,
    and how many requests a run makes, which is counted and kept, would depend on who came when.

    Args:
        dispatcher: sends the calls.
        model: the embedding model's name.

    Raises:
        OllamaError: the model does not embed; it is tried once, to learn the dimension.
    """

    def __init__(self, dispatcher: Dispatcher, model: str) -> None:
        self.name = f"ollama:{model}"
        self._dispatcher = dispatcher
        self._model = model
        self.dimension = int(dispatcher.embed(model, _KNOWN_GOOD).shape[1])

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) rows of length 1; a blank text, which servers refuse, gives (1, 0, ..., 0).

        Raises:
            EncodingError: the server gave no embeddings of some texts, after all attempts.
        """
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        rows[:, :1] = 1.0
        failures: dict[int, OllamaError] = {}
        written = [index for index, text in enumerate(texts) if text.strip()]
        chunks = deque(written[start : start + _CHUNK] for start in range(0, len(written), _CHUNK))
        while chunks:
            chunk = chunks.popleft()
            try:
                rows[chunk] = self._embed([texts[index] for index in chunk])
            except OllamaError as error:
                if len(chunk) > 1 and isinstance(error, _MAY_BE_OF_ONE_TEXT) and self._is_up():
                    chunks.extend([index] for index in chunk)
                else:
                    failures |= dict.fromkeys(chunk, error)
        if failures:
            raise EncodingError(rows, failures)
        return rows

    def _is_up(self) -> bool:
        try:
            self._dispatcher.embed(self._model, _KNOWN_GOOD, fresh=True)
        except OllamaError:
            return False
        return True

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = self._dispatcher.embed(self._model, texts)
        if rows.shape[1] != self.dimension:
            raise BadReplyError(
                f"encoder {self.name!r} gave embeddings of length {rows.shape[1]}; "
                f"expected {self.dimension}, as at first: was its model exchanged?"
            )
        return rows
