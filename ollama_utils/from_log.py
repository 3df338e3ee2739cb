"""A connection without a server: the log of replies alone answers, as when a run is played again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from ollama_utils.connect import Connection, Roles, ServerConfig
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import NotInLogError
from ollama_utils.types import Call, Completion, Embeddings, Inventory
from records.errors import UserError

_HOST = "the log of replies"
_SHOWN_CHARS = 60


class LogClient:
    """Stands where the client of a server would: whatever reaches it has no reply in the log.

    Args:
        host: what stands in messages.
        digests: what stands for the weights of each model, by its name.
    """

    def __init__(self, host: str, digests: Mapping[str, str]) -> None:
        self.host = host
        self._digests = dict(digests)

    def generate(self, call: Call, *, stream: bool = False) -> Completion:  # noqa: ARG002 - ModelClient's
        """Raises NotInLogError, which names the call."""
        _fail(call.model, call.prompt)

    def embed(self, model: str, texts: Sequence[str]) -> Embeddings:
        """Raises NotInLogError, which names the first text."""
        _fail(model, texts[0])

    def models(self) -> dict[str, str]:
        """The models of the run."""
        return dict(self._digests)

    def completes(self, model: str) -> bool:  # noqa: ARG002 - ModelClient's
        """True: a run names its models."""
        return True

    def slots(self) -> int | None:
        """None: nobody is asked."""
        return None

    def inventory(self) -> Inventory:
        """The models of the run: nobody is asked for more."""
        return Inventory(version=None, pulled=dict.fromkeys(self._digests), loaded=None)

    def close(self) -> None:
        """There is nothing to close."""


def _fail(model: str, text: str) -> NoReturn:
    start = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    raise NotInLogError(f"replies.sqlite has no reply to this call to model {model!r}: {start!r}")


@contextmanager
def connect_to_log(
    config: ServerConfig, digests: Mapping[str, str], *, simulated: bool
) -> Iterator[Connection]:
    """A connection that sends nothing: a call whose reply no log holds fails with NotInLogError.

    Args:
        config: names the models, as the config.toml of a run does; its hosts do not count.
        digests: what stands for the weights of each model that the run called, by its short name.
        simulated: whether the replies are the simulator's.

    Raises:
        UserError: no target or no mutator is named.
    """
    if not config.target_model or not config.mutator_model:
        raise UserError("the run's config.toml names no target-model or no mutator-model: no run wrote it")
    roles = Roles(target=config.target_model, mutator=config.mutator_model, judge=config.judge_model)

    def opener(host: str, *, timeout_s: float, max_reply_chars: int) -> LogClient:  # noqa: ARG001 - ClientOpener's
        return LogClient(host, digests)

    with Dispatcher([_HOST], opener=opener) as dispatcher:
        yield Connection(
            dispatcher=dispatcher,
            hosts=(_HOST,),
            named=(),
            roles=roles,
            available={name: (digest,) for name, digest in digests.items()},
            child=None,
            simulated=simulated,
            simulated_target=None,
        )
