"""How the models of a search are called: the flags of `mutagym train` by the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cyclopts import Parameter

from train.settings import Count


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CallFlags:
    """What every call of a search carries, whatever is asked."""

    num_ctx: Count | None = None
    """Context length of the models [the server's]."""
    think: bool | None = None
    """Whether a thinking target thinks [the server's choice]; its thoughts are never scored. --no-think goes
    to the model that rewords, too."""

    @property
    def options(self) -> dict[str, Any]:
        """Ollama's options; all calls to a model need the same context length, for a change reloads it."""
        return {"num_ctx": self.num_ctx} if self.num_ctx else {}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LimitedCallFlags(CallFlags):
    """Those of a search that has no other limit on the length of a reply."""

    num_predict: Count = 512
    """Most tokens of an answer or a rewording, thoughts included; a rewording that is cut is not taken."""

    @property
    def options(self) -> dict[str, Any]:
        """Ollama's options of the calls that answer or reword."""
        return super().options | {"num_predict": self.num_predict}
