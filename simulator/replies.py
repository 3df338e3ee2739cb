"""A reply of `/api/generate` or `/api/chat` in Ollama's fields, whole or in the chunks of a stream.

A reply is counted as as many tokens as the server's setting draws for it, so the text of each part (what a
model thinks, then what it says) is divided evenly into that many pieces; a text shorter than its count has
empty ones among them. A chunk of a stream is such a token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

from simulator import wire
from simulator.engine import Turn

Kind = Literal["thought", "word"]
"""What a token belongs to: the thinking, or the words of the reply."""


class Token(NamedTuple):
    """A piece of a reply."""

    text: str
    kind: Kind


@dataclass(frozen=True)
class Part:
    """A stretch of a reply of one kind."""

    text: str
    kind: Kind
    count: int
    """Into how many tokens the text is divided."""

    def tokens(self) -> Iterator[Token]:
        """The text in pieces as long as each other, but for one character."""
        ends = [place * len(self.text) // self.count for place in range(self.count + 1)]
        for start, end in pairwise(ends):
            yield Token(self.text[start:end], self.kind)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is left of a reply, and why it ends there."""

    tokens: Sequence[Token]
    """Those that are shown: within the limit, the last of them cut before a stop sequence."""
    count: int
    """How many were generated; those of a stop sequence count."""
    reason: Literal["stop", "length"]

    def text(self, kind: Kind) -> str:
        """What is shown of a kind."""
        return "".join(token.text for token in self.tokens if token.kind == kind)


def end(parts: Sequence[Part], limit: int | None, stops: Sequence[str]) -> Ending:
    """The reply up to the first stop sequence, and of at most `limit` tokens (None is no limit)."""
    every = [token for part in parts for token in part.tokens()]
    kept = every[:limit]
    text = "".join(token.text for token in kept)
    found = [(at, at + len(stop)) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        reason: Literal["stop", "length"] = "stop" if len(kept) == len(every) else "length"
        return Ending(tokens=kept, count=len(kept), reason=reason)
    shown_until, generated_until = min(found)
    starts = list(accumulate((len(token.text) for token in kept[:-1]), initial=0))
    shown = kept[: bisect_left(starts, shown_until)]
    if shown:
        last = shown[-1]
        shown[-1] = last._replace(text=last.text[: shown_until - starts[len(shown) - 1]])
    return Ending(tokens=shown, count=bisect_left(starts, generated_until), reason="stop")


Endpoint = Literal["generate", "chat", "chat/completions"]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one chunk of a stream brings, or a whole reply."""

    tokens: int
    """Tokens that are generated when it is complete, from the reply's first on."""
    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One reply, known in full before its time begins."""

    endpoint: Endpoint
    named: str
    """The model as the request named it."""
    prompt_tokens: int
    ending: Ending
    """Its tokens and why they end."""
    context: tuple[int, ...]
    """What stands for prompt and reply in a next request; () where the endpoint gives none."""

    @property
    def tokens(self) -> int:
        """Tokens that the reply is counted as, its thinking included; they decide its time."""
        return self.ending.count

    def pieces(self) -> Iterator[Piece]:
        """The reply in chunks: one for each token with something to show."""
        for count, token in enumerate(self.ending.tokens, 1):
            if token.text and token.kind == "word":
                yield Piece(tokens=count, text=token.text)
            elif token.text:
                yield Piece(tokens=count, thinking=token.text)

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """A piece of the reply with the fields every chunk has."""
        head = {"model": self.named, "created_at": wire.now_text()}
        return head | _words(self.endpoint, piece) | {"done": False}

    def final(self, turn: Turn) -> dict[str, Any]:
        """The last chunk of the stream: no words, but all counts."""
        return self._done(Piece(tokens=self.tokens), turn)

    def whole(self, turn: Turn) -> dict[str, Any]:
        """The reply that is not streamed."""
        text, thinking = self.ending.text("word"), self.ending.text("thought")
        return self._done(Piece(tokens=self.tokens, text=text, thinking=thinking), turn)

    def _done(self, piece: Piece, turn: Turn) -> dict[str, Any]:
        more: dict[str, Any] = {"done": True, "done_reason": self.ending.reason}
        counts = {
            "context": list(self.context),
            "total_duration": wire.nanoseconds(turn.total_s),
            "load_duration": wire.nanoseconds(turn.load_s),
            "prompt_eval_count": self.prompt_tokens,
            "prompt_eval_duration": wire.nanoseconds(turn.prefill_s),
            "eval_count": self.tokens,
            "eval_duration": wire.nanoseconds(turn.decode_s),
        }
        return self.chunk(piece) | more | wire.without_zeros(counts)


class Lines:
    """A reply as the lines of a stream of Ollama's.

    Args:
        reply: the reply.
    """

    content_type = "application/x-ndjson"

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def piece(self, piece: Piece) -> bytes:
        """A piece of the text."""
        return wire.dumps(self._reply.chunk(piece)) + b"\n"

    def last(self, turn: Turn) -> bytes:
        """The end, with all counts."""
        return wire.dumps(self._reply.final(turn)) + b"\n"


def empty_reply(endpoint: Endpoint, body: wire.Body, done_reason: str) -> dict[str, Any]:
    """A reply without a word: to an empty prompt, which only loads or unloads the model."""
    head = {"model": body["model"], "created_at": wire.now_text()}
    return head | _words(endpoint, Piece(tokens=0)) | {"done": True, "done_reason": done_reason}


def _words(endpoint: Endpoint, piece: Piece) -> dict[str, Any]:
    thinking = wire.without_zeros({"thinking": piece.thinking})
    if endpoint == "generate":
        return {"response": piece.text, **thinking}
    return {"message": {"role": "assistant", "content": piece.text, **thinking}}
