"""What `/api/generate` and `/api/chat` say: a persona's words in Ollama's fields."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal

from ollama_utils.simulator import wire
from ollama_utils.simulator.chance import digest_of, share_of
from ollama_utils.simulator.engine import Turn
from ollama_utils.simulator.state import State

Endpoint = Literal["generate", "chat"]

_VOCABULARY = 32_000


@dataclass(frozen=True, kw_only=True)
class Speech:
    """One reply, known in full before its time begins."""

    endpoint: Endpoint
    named: str
    """The model as the request named it."""
    text: str
    prompt: str
    prompt_tokens: int
    tokens: int
    """Tokens that the reply is counted as; they decide its time."""
    done_reason: Literal["stop", "length"]
    raw: bool

    def chunk(self, text: str) -> dict[str, Any]:
        """A piece of the reply with the fields every chunk has."""
        head = {"model": self.named, "created_at": wire.now_text()}
        return head | _words(self.endpoint, text) | {"done": False}

    def final(self, text: str, turn: Turn, now_s: float) -> dict[str, Any]:
        """The last chunk, or the whole reply when it is not streamed."""
        more: dict[str, Any] = {"done": True, "done_reason": self.done_reason}
        if self.endpoint == "generate" and not self.raw:
            more["context"] = _token_ids(f"{self.prompt} {self.text}")
        counts = {
            "total_duration": wire.nanoseconds(now_s - turn.arrived_s),
            "prompt_eval_count": self.prompt_tokens,
            "prompt_eval_duration": wire.nanoseconds(turn.decoding_s - turn.started_s),
            "eval_count": self.tokens,
            "eval_duration": wire.nanoseconds(turn.due_s - turn.decoding_s),
        }
        return self.chunk(text) | more | wire.without_zeros(counts)


def prepare(state: State, endpoint: Endpoint, body: wire.Body, ask: wire.Ask) -> Speech:
    """The reply to a question: a pure function of the request and the server's seed."""
    digest = digest_of(state.settings.seed, *ask.identity())
    role = state.catalogue.roles[ask.model]
    said = state.persona.reply(role, ask, digest)
    state.counters.unrecognised_instructions += not said.recognised
    length = state.reply_length(share_of(digest, "length"))
    limit = ask.num_predict if ask.num_predict > 0 else length
    return Speech(
        endpoint=endpoint,
        named=body["model"],
        text=said.text,
        prompt=ask.prompt,
        prompt_tokens=max(1, wire.count_tokens(ask.system + ask.history + ask.prompt)),
        tokens=min(length, limit),
        done_reason="length" if length > limit else "stop",
        raw=bool(body.get("raw")),
    )


def bare_reply(endpoint: Endpoint, body: wire.Body, done_reason: str) -> dict[str, Any]:
    """A reply without a word: to an empty prompt, which only loads or unloads the model."""
    head = {"model": body["model"], "created_at": wire.now_text()}
    return head | _words(endpoint, "") | {"done": True, "done_reason": done_reason}


def _words(endpoint: Endpoint, text: str) -> dict[str, Any]:
    if endpoint == "generate":
        return {"response": text}
    return {"message": {"role": "assistant", "content": text}}


def _token_ids(text: str) -> list[int]:
    return [zlib.crc32(word.encode("utf-8", "replace")) % _VOCABULARY for word in text.split()]
