"""Calls to a model and its replies, as frozen data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ollama_utils.errors import OllamaError

CALL_TIMEOUT_S = 120.0
"""Seconds after which one call is given up, unless another number is set; likewise below."""
MAX_REPLY_CHARS = 1_000_000
"""The characters of a reply that are kept: more than a model says."""
THINK_BUDGET = 2048
"""The tokens of thoughts, beside those of the answer."""
CALL_ATTEMPTS = 4
"""How often a failing call is tried."""
MEMORY_BYTES = 2**28
"""Bytes for remembered replies."""
MAX_OUTAGE_S = 600.0
"""Seconds for which an outage of all servers is waited out."""

Think = bool | Literal["low", "medium", "high"]
"""Whether a thinking model thinks, or how much; gpt-oss takes the levels alone, and cannot stop."""
ThinkWord = Literal["off", "on", "low", "medium", "high"]
"""The same as a flag's word; see `think_of`."""
Role = Literal["target", "mutator", "judge"]
"""What a model is called for; one that criticises or chooses is also called as a judge."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request for a completion: everything that decides the reply."""

    model: str
    """The model's name as the server lists it."""
    prompt: str
    """The user's turn."""
    system: str | None = None
    """The system prompt; None keeps the model's own."""
    examples: tuple[tuple[str, str], ...] = ()
    """Worked examples, as chat turns before the prompt: a user's words, and the right reply.
    A call with any goes to `/api/chat`, one without to `/api/generate`."""
    format: Mapping[str, Any] | None = None
    """A JSON schema that the reply must follow."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ollama's options (`temperature`, `seed`, `num_predict`, ...)."""
    think: Think | None = None
    """Whether a thinking model thinks, or how much; None leaves it to the server."""
    role: Role = field(default="target", compare=False)
    """What the model is called for; decides the defaults that the dispatcher sets."""

    @property
    def repeatable(self) -> bool:
        """Whether an equal call gets an equal reply: greedy, or drawn with a seed."""
        temperature, seed = self.options.get("temperature"), self.options.get("seed")
        return (isinstance(temperature, int | float) and temperature == 0) or (
            isinstance(seed, int | float) and seed != -1
        )


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt of a batch that has settings of its own beside its text; the fields are `Call`'s."""

    text: str
    system: str | None = None
    """None: that of the batch, or the model's own."""
    examples: tuple[tuple[str, str], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """These take precedence over the batch's."""
    think: Think | None = None
    """None: as the batch says, or the server."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens and seconds of one call as the server reported them; a duration it left out is 0."""

    prompt_tokens: int = 0
    """All of the prompt's, those that the server had in its cache included."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt that the server had in its cache; 0 where it does not say."""
    thought_tokens: int = 0
    """Those of the completion that are thoughts, as the server counts them."""
    estimated_thought_tokens: int = 0
    """The same by their share of the characters, where the server does not count them."""
    load_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0

    @property
    def queue_s(self) -> float:
        """Seconds the call waited for a slot: the total less load, prefill and decode.

        0 where the server reports neither prefill nor decode, as with embeddings.
        """
        served_s = self.prefill_s + self.decode_s
        return max(0.0, self.total_s - self.load_s - served_s) if served_s else 0.0


USAGE_TOKENS = tuple(each.name for each in fields(Usage) if each.name.endswith("_tokens"))
"""The counts of `Usage`."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One reply; never an exception once a Dispatcher returned it."""

    text: str
    """The reply, or the documented fallback when `error` is set."""
    error: OllamaError | None = None
    cached: bool = False
    """Whether an earlier equal call paid for this reply."""
    attempts: int = 1
    """How many times the server was asked (0 when an equal call asked)."""
    truncated: bool = False
    """Whether the reply was cut: at `num_predict`, or at the most characters that are kept."""
    filtered: bool = False
    """Whether a content filter of the server ended the reply; there may be no text."""
    usage: Usage | None = None
    """None when the server failed, or reported nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Embeddings:
    """One reply to an embedding request."""

    rows: NDArray[np.float32]
    """(N, D) rows of length 1, in the order of the texts."""
    usage: Usage | None = None

    @cached_property
    def texts(self) -> list[str]:
        """Each row as JSON."""
        return [json.dumps(row) for row in self.rows.tolist()]


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What a server says of itself and its models; None where it does not say."""

    version: str | None
    pulled: Mapping[str, int | None]
    """By name the bytes of each model that it has."""
    loaded: Mapping[str, int] | None
    """By name the bytes in memory of each model that is there now."""
    slots: int | None = None
    """How many calls it serves at once."""


def think_of(word: ThinkWord | Think | None) -> Think | None:
    """The value of `Call.think` for a flag's word; None, the default, for None."""
    return word == "on" if word in {"on", "off"} else word  # type: ignore[return-value]  # a level


def is_text(value: object) -> bool:
    """Whether a value is a string of valid Unicode, without half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode("utf-8") is not None
    except UnicodeEncodeError:
        return False


def short_name(model: str) -> str:
    """The name without the tag that it would get anyway: `x:latest` and `x` are one model."""
    return model.strip().removesuffix(":latest")
