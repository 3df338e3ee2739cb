"""What a few calls show of a server: models that stay loaded together, slots, speed, equal replies.

`check_residency` calls each model once, and then each once more: one that was loaded again, or is in memory
no more, was displaced by the others. `burst` asks a few questions alone, twice each, and then the same ones
many at a time, until calls wait: `Capacity` then names the slots, as in every run, unless the service seconds
over the wall seconds, which can be no more than the slots, show that there are more; and the replies are held
against the first. Where calls are slow, fewer are asked at once. Nothing here pulls, deletes or unloads a
model, or carries a `keep_alive`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ollama_utils.dispatcher import Dispatcher, account_totals
from ollama_utils.errors import BadReplyError, BadRequestError
from ollama_utils.parallel import ParallelError, map_parallel
from ollama_utils.swaps import Loads
from ollama_utils.types import Call, Completion, Inventory, Usage, short_name

AT_ONCE = (4, 16, 32)
"""Calls at once in a burst: more as long as no call waits, which is to be seen from 1 to some 24 slots."""
_TIMES = 3
"""Calls in a burst for each that is under way at once: all but the last are replaced when they end."""
_ALONE = 2
_FEW_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class Residency:
    """Whether models stay in memory together."""

    displaced: frozenset[str] | None
    """Short names of those that had to leave for others; empty: all stay. None: the server does not tell, or
    there is only one model."""
    load_s: float
    """The longest that a call waited for its model to be loaded; 0 where none did, or that is not told."""


def find_inventories(
    dispatcher: Dispatcher,
    available: Iterable[str] = (),
    report: Callable[[str], None] = lambda _line: None,
) -> dict[str, Inventory]:
    """What each server tells of itself, by host; where one does not, the models that are known to be there.

    Args:
        dispatcher: of the servers.
        available: the models that they have.
        report: is called with what went wrong.

    Raises:
        OllamaError: a server does not answer.
    """
    try:
        return dispatcher.inventories()
    except (BadRequestError, BadReplyError) as error:
        report(f"{type(error).__name__}: {error}")
        untold = Inventory(version=None, pulled=dict.fromkeys(available), loaded=None)
        return dict.fromkeys(dispatcher.hosts, untold)


def residency_calls(models: int) -> int:
    """How many calls `check_residency` makes at most."""
    return models * (1 if models == 1 else _ALONE)


def check_residency(
    dispatcher: Dispatcher,
    generating: Sequence[str],
    embedding: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Residency:
    """Call all models in turn, for a few tokens, twice; see the module. One model is called once.

    Args:
        dispatcher: of one server; several would share the calls, and nothing is found.
        generating: models that generate.
        embedding: one that embeds.
        options: runner options of the run, such as `num_ctx`: others would load the models anew.

    Raises:
        OllamaError: a call failed.
    """
    loads = Loads()
    few_tokens = {**(options or {}), "temperature": 0, "seed": 0, "num_predict": _FEW_TOKENS}
    asks: dict[str, Callable[[], Usage]] = {
        model: partial(
            _usage_of, dispatcher, Call(model=model, prompt="Say yes.", options=few_tokens)
        )
        for model in dict.fromkeys(map(short_name, generating))
    }
    if embedding is not None:
        asks[short_name(embedding)] = partial(_usage_of_embedding, dispatcher, embedding)
    usages = {model: ask() for model, ask in asks.items()}
    for model, usage in usages.items():
        loads.waited(model, usage)
    load_s = max(usage.load_s for usage in usages.values())
    if len(asks) == 1 or len(dispatcher.hosts) > 1:
        return Residency(displaced=None, load_s=load_s)
    there = next(iter(find_inventories(dispatcher).values())).loaded
    if there is not None and [*asks][-1] not in map(
        short_name, there
    ):  # no other was called after it
        return Residency(
            displaced=None, load_s=load_s
        )  # models leave at once (OLLAMA_KEEP_ALIVE=0)
    missing = set() if there is None else asks.keys() - set(map(short_name, there))
    again = {model: ask() for model, ask in asks.items()}
    loaded_again = {model for model, usage in again.items() if loads.waited(model, usage)}
    tells = there is not None or load_s > 0
    return Residency(
        displaced=frozenset(missing | loaded_again) if tells else None,
        load_s=max(load_s, *(usage.load_s for usage in again.values())),
    )


def _usage_of(dispatcher: Dispatcher, call: Call) -> Usage:
    return _reply(dispatcher, call).usage or Usage()


def _usage_of_embedding(dispatcher: Dispatcher, model: str) -> Usage:
    """Nothing is told of it here: the list of models in memory alone shows whether it stays."""
    dispatcher.embed(model, ["yes"])
    return Usage()


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What a burst showed; a speed is of a reply's tokens, by the wall clock."""

    model: str
    at_once: int
    """The most calls that were under way at once."""
    slots: int | None
    """How many of them were served at once, over all servers; None: no call was seen to wait, or how long it
    was served is not told."""
    busy_slots: float
    """How many were served at once on the mean, the beginning and the end included; 0: not told."""
    tokens_per_s_alone: float | None
    """None: the server does not count tokens."""
    tokens_per_s_full: float | None
    """With so many calls under way."""
    equal_alone: int
    """Questions that were answered alone twice in the same words ..."""
    asked_alone: int
    """... of so many whose replies had words."""
    equal_full: int
    """Replies in company that were the words of the first reply alone ..."""
    asked_full: int
    """... of so many whose replies had words."""


def burst_calls(questions: int) -> int:
    """How many calls `burst` makes at most."""
    return _ALONE * questions + _TIMES * sum(AT_ONCE)


def fewest_burst_calls(questions: int) -> int:
    """How many calls `burst` makes, however slow they are."""
    return _ALONE * questions + _TIMES * AT_ONCE[0]


def burst(dispatcher: Dispatcher, questions: Sequence[Call], most_s: float = math.inf) -> Burst:
    """Ask questions alone, twice each, and many at once; the slots stand in `dispatcher.capacities()` then.

    Args:
        dispatcher: remembers no replies (`cache_size` 0).
        questions: of one model, repeatable.
        most_s: seconds that it may take; more calls at once are not tried where they would take longer,
            though the fewest are.

    Raises:
        OllamaError: a call failed; BadReplyError: no question that was asked alone got a word.
    """
    end_s = time.monotonic() + most_s
    began_s = time.monotonic()
    alone = [_reply(dispatcher, question) for question in [*questions] * _ALONE]
    alone_s = time.monotonic() - began_s
    errors = [reply.error for reply in alone if reply.error]
    if len(errors) == len(alone):  # nothing is counted then
        raise errors[0]
    first, second = alone[: len(questions)], alone[len(questions) :]
    twice = _pairs_with_words(first, second)
    for at_once, more in zip(AT_ONCE, (*AT_ONCE[1:], math.inf), strict=True):
        numbers = [number % len(questions) for number in range(_TIMES * at_once)]
        before_s, began_s = account_totals(dispatcher)["busy_s"], time.monotonic()
        full = _together(dispatcher, [questions[number] for number in numbers], at_once)
        full_s = time.monotonic() - began_s
        busy = (account_totals(dispatcher)["busy_s"] - before_s) / full_s
        slots = slots_of(dispatcher, questions[0].model)
        if slots is not None and slots <= at_once and round(busy) <= slots:
            break
        if (
            time.monotonic() + full_s * more / at_once > end_s
        ):  # as long as if none could be served besides
            break
    beside = _pairs_with_words([first[number] for number in numbers], full)
    return Burst(
        model=questions[0].model,
        at_once=dispatcher.max_in_flight_seen,
        slots=None if slots is None else max(slots, round(busy)),
        busy_slots=busy,
        tokens_per_s_alone=_speed(alone, alone_s),
        tokens_per_s_full=_speed(full, full_s),
        equal_alone=sum(one.text == other.text for one, other in twice),
        asked_alone=len(twice),
        equal_full=sum(one.text == other.text for one, other in beside),
        asked_full=len(beside),
    )


def slots_of(dispatcher: Dispatcher, model: str) -> int | None:
    """The slots of a model over all servers; None while those of one are not known."""
    found = [
        each.slots
        for (_, name), each in dispatcher.capacities().items()
        if name == short_name(model)
    ]
    return None if not found or None in found else sum(filter(None, found))


def _reply(dispatcher: Dispatcher, call: Call) -> Completion:
    """A reply; one without a word costs as much as another, and is one, too."""
    reply = dispatcher.generate(call)
    if reply.error and not isinstance(reply.error, BadReplyError):
        raise reply.error
    return reply


def _pairs_with_words(
    ones: Sequence[Completion], others: Sequence[Completion]
) -> list[tuple[Completion, Completion]]:
    pairs = zip(ones, others, strict=True)
    return [(one, other) for one, other in pairs if one.error is None and other.error is None]


def _together(dispatcher: Dispatcher, calls: Sequence[Call], at_once: int) -> list[Completion]:
    try:
        return map_parallel(partial(_reply, dispatcher), calls, at_once)
    except ParallelError as error:
        raise error.__cause__ or error from None


def _speed(replies: Sequence[Completion], wall_s: float) -> float | None:
    tokens = sum(reply.usage.completion_tokens for reply in replies if reply.usage)
    return tokens / wall_s if tokens else None
