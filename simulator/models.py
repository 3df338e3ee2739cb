"""The models as `/api/tags`, `/api/show` and `/api/ps` describe them, and how much of a text they read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from simulator.engine import LoadedModel, Model
from simulator.names import FORMAT, full_name
from simulator.personas.persona import Persona
from simulator.wire import ApiError, now_text

CONTEXT_TOKENS = 4096
"""The most tokens that a model reads at once."""

_CHARACTERS_A_TOKEN = 4
"""An assumption."""


def context_tokens(num_ctx: int) -> int:
    """The tokens of prompt and reply that a model holds; `num_ctx` of 0 or less asks for all it can."""
    return min(num_ctx, CONTEXT_TOKENS) if num_ctx > 0 else CONTEXT_TOKENS


def count_tokens(text: str, num_ctx: int, *, truncate: bool = True) -> int:
    """About how many tokens of a text are read: those that the context holds.

    Args:
        text: what a request brings.
        num_ctx: as in its options.
        truncate: whether a longer text may be cut.

    Raises:
        ApiError: 400, it is longer and must not be cut.
    """
    count, most = -(-len(text) // _CHARACTERS_A_TOKEN), context_tokens(num_ctx)
    if count > most and not truncate:
        raise ApiError(400, "the input length exceeds the context length")
    return min(count, most)


def check_system(text: str) -> None:
    """Check that a system prompt leaves room for a question: it is never cut.

    Raises:
        ApiError: 400, it fills the whole context.
    """
    most = _CHARACTERS_A_TOKEN * CONTEXT_TOKENS
    if len(text) > most:
        raise ApiError(
            400, f"the simulator reads system prompts of at most {most} characters, got {len(text)}"
        )


def read_part(text: str) -> str:
    """The part of a text that a model reads at all: its end, where the question of a long prompt stands."""
    return text[-_CHARACTERS_A_TOKEN * CONTEXT_TOKENS :]


VERSION = "0.33.0"
"""The version of Ollama whose behaviour is played."""
REPLIES_VERSION = 1
"""The version of what the models say; a part of their digests.

Raise it by 1 with every change to the code after which some model gives another reply to some request: other
words, thoughts, numbers or counts of tokens. Earlier runs on the embedded server then no longer resume, and
its cached replies are not used. A change to a persona file shows in the digests by itself; when a reply
comes (durations, queueing) is no part of them.
"""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SIZE_BYTES = 4_000_000_000
_MODIFIED_AT = "2025-01-01T00:00:00Z"
_TEMPLATE = "{{ .System }} {{ .Prompt }}"
_PARAMETER = f"{'num_ctx':30} {CONTEXT_TOKENS}"
_LICENSE = "The simulator's words come from a persona file; there are no weights."


class Catalogue:
    """The models by full name.

    Args:
        persona: whose models they are.
        stamp: stands for all settings that decide what they say.
        replies_version: stands for the code that decides it.
    """

    def __init__(self, persona: Persona, stamp: str, replies_version: int = REPLIES_VERSION) -> None:
        self._models = {full_name(name): model for name, model in persona.models.items()}
        self._by_small_name = {name.lower(): name for name in self._models}
        self._dimension = persona.dimension
        self._stamp = f"{persona.fingerprint} {stamp} {replies_version}"
        self._pulled: dict[str, tuple[str, str]] = {}
        """The digest and the moment of what was pulled anew, by model."""

    def find(self, name: str) -> str | None:
        """The full name of a model that is here; capitals do not count."""
        return self._by_small_name.get(full_name(name.strip()).lower())

    def role(self, model: str) -> str:
        """What a model plays in the persona: target, mutator, judge or embedding."""
        return self._models[model].role

    def capabilities(self, model: str) -> list[str]:
        """What a model can do, in Ollama's words."""
        if self.role(model) == "embedding":
            return ["embedding"]
        return ["completion", *(["thinking"] if "thinking" in self._models[model].abilities else [])]

    def digest(self, model: str) -> str:
        """64 hexadecimal digits that stand for all that decides what a model says, but the request."""
        if model in self._pulled:
            return self._pulled[model][0]
        return sha256(f"{model} {self._stamp}".encode("utf-8", "replace")).hexdigest()

    def pull(self, model: str, digest: object = None) -> None:
        """Give a model another digest, which is made up where it is left out; what it says stays as it is.

        Raises:
            ValueError: that is no digest.
        """
        if digest is None:
            digest = sha256(self.digest(model).encode()).hexdigest()
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError(f"digest must be 64 hexadecimal digits, got {digest!r}")
        self._pulled[model] = (digest, now_text())

    def tags(self) -> dict[str, Any]:
        """The reply of `/api/tags`."""
        return {"models": [self._tag(model) for model in self._models]}

    def running(self, loaded: Iterable[LoadedModel]) -> dict[str, Any]:
        """The reply of `/api/ps` when these models are in memory."""
        now = datetime.now(UTC)
        return {"models": [self.entry(each.model) | _stay(each, now) for each in loaded]}

    def needs(self) -> dict[str, Model]:
        """What each model needs to be loaded; one that only embeds has a single slot."""
        return {
            model: Model(size_gb=_SIZE_BYTES / 1e9, one_slot="completion" not in self.capabilities(model))
            for model in self._models
        }

    def show(self, model: str) -> dict[str, Any]:
        """The reply of `/api/show`."""
        return {
            "license": _LICENSE,
            "modelfile": _modelfile(model),
            "parameters": _PARAMETER,
            "template": _TEMPLATE,
            "details": self._details(model),
            "model_info": self._info(model),
            "capabilities": self.capabilities(model),
            "modified_at": self._modified_at(model),
        }

    def entry(self, model: str) -> dict[str, Any]:
        """What the lists say of a model, loaded or not."""
        return {
            "name": model,
            "model": model,
            "size": _SIZE_BYTES,
            "digest": self.digest(model),
            "details": self._details(model),
        }

    def _tag(self, model: str) -> dict[str, Any]:
        more = {"modified_at": self._modified_at(model), "capabilities": self.capabilities(model)}
        return self.entry(model) | more

    def _modified_at(self, model: str) -> str:
        return self._pulled[model][1] if model in self._pulled else _MODIFIED_AT

    def _details(self, model: str) -> dict[str, Any]:
        return {
            "parent_model": "",
            "format": FORMAT,
            "family": "simulator",
            "families": [f"simulator-{self.role(model)}"],
            "parameter_size": "0B",
            "quantization_level": "none",
        }

    def _info(self, model: str) -> dict[str, Any]:
        info = {
            "general.architecture": "simulator",
            "general.parameter_count": 0,
            "simulator.context_length": CONTEXT_TOKENS,
        }
        embeds = self.role(model) == "embedding"
        return info | ({"simulator.embedding_length": self._dimension} if embeds else {})


def _stay(loaded: LoadedModel, now: datetime) -> dict[str, Any]:
    expires_at = (now + timedelta(seconds=loaded.stays_s)).isoformat().replace("+00:00", "Z")
    return {
        "expires_at": expires_at,
        "size_vram": _SIZE_BYTES,
        "context_length": context_tokens(loaded.num_ctx),
    }


def _modelfile(model: str) -> str:
    return (
        '# Modelfile generated by "ollama show"\n'
        "# To build a new Modelfile based on this, replace FROM with:\n"
        f"# FROM {model}\n\n"
        f'FROM {model}\nTEMPLATE "{_TEMPLATE}"\nPARAMETER num_ctx {CONTEXT_TOKENS}\nLICENSE "{_LICENSE}"\n'
    )
