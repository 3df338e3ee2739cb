"""What a few calls show of a server: which models stay in memory, slots, speed, equal replies.

`check_reply` and `check_context` read the first reply of a role, before a run costs.
`check_residency` calls each model twice, in turn: one that is loaded again, or is in memory no
more, had to leave for the others. `burst` asks a few questions alone, twice each, and then many at
a time, until calls wait: the dispatcher then knows the slots, as in every run. Nothing here pulls,
deletes or unloads a model, or carries a `keep_alive`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import BadReplyError, BadRequestError, ModelMissingError, OllamaError
from ollama_utils.model_client import UNAUTHORIZED
from ollama_utils.parallel import ParallelError, map_parallel
from ollama_utils.types import Call, Completion, Inventory, Role, Usage, short_name
from records.errors import UserError

AT_ONCE = (4, 16, 32)
"""Calls at once in a burst: more as long as no call waits, which shows from 1 to some 24 slots."""
_TIMES = 3
"""Calls in a burst for each that is under way at once: so most have others beside them."""
_ALONE = 2
"""How often each question is asked alone."""
_BYTES_A_TOKEN = 4
"""Of English; of other languages a token has fewer, so that more tokens come than are foreseen."""
_LOAD_S, _LOAD_SHARE = 0.1, 0.1
"""A call waited for its model to be loaded for more seconds, and for more of its own."""


def check_reply(
    role: Role, reply: Completion, report: Callable[[str], None], *, required: bool = True
) -> None:
    """Say what is wrong with the first reply of a role.

    Args:
        role: the model's.
        reply: to its first question.
        report: is given a line for the user.
        required: whether nothing can come of the run without this model.

    Raises:
        UserError: so it is: there is no such model, or the server wants another key.
    """
    error = reply.error
    if (
        error
        and required
        and (isinstance(error, ModelMissingError) or error.status in UNAUTHORIZED)
    ):
        raise UserError(str(error))
    if error:
        report(f"the first call to the {role} failed: {type(error).__name__}: {error}")
    elif reply.truncated and role == "mutator":
        report("the first rewording was cut, so it is not adopted: raise --rewrite-num-predict")


def check_context(
    dispatcher: Dispatcher,
    call: Call,
    reply: Completion,
    longest: str,
    report: Callable[[str], None],
) -> None:
    """Say so where the longest prompt and its reply do not fit into the context that is in force.

    Args:
        dispatcher: of the call.
        call: the first one, by which the model is loaded.
        reply: to it.
        longest: what another call asks in place of its prompt.
        report: is given the line.
    """
    first_tokens = reply.usage.prompt_tokens if reply.usage else 0
    more_bytes = len(longest.encode()) - (len(call.prompt.encode()) if first_tokens else 0)
    tokens = first_tokens + more_bytes // _BYTES_A_TOKEN
    most = dispatcher.with_defaults(call).options["num_predict"]
    model = short_name(call.model)
    for server in dispatcher.servers.all:
        try:
            contexts = server.client.contexts()
        except OllamaError:  # which the calls will show
            continue
        by_name = {short_name(name): context for name, context in contexts.items()}
        context = by_name.get(model)
        if context and tokens + most > context:
            report(
                f"the longest query makes a prompt of some {tokens:,} tokens; with a reply of up "
                f"to {most:,} it exceeds the context of {model!r} at {server.host} ({context:,}): "
                f"{server.client.larger_context}, or lower --num-predict"
            )


@dataclass(frozen=True, kw_only=True)
class Residency:
    """Whether models stay in memory together."""

    displaced: frozenset[str] | None
    """Short names of those that had to leave for others; empty: all stay. None: the server does not
    say, or there is only one model."""
    load_s: float
    """The longest that a call waited for its model; 0 where none did, or that is not reported."""


def find_inventories(
    dispatcher: Dispatcher,
    available: Iterable[str] = (),
    report: Callable[[str], None] = lambda _line: None,
) -> dict[str, Inventory]:
    """What each server says of itself, by host; where one does not, the `available` models.

    Raises:
        OllamaError: a server does not answer.
    """
    try:
        return {each.host: each.client.inventory() for each in dispatcher.servers.all}
    except (BadRequestError, BadReplyError) as error:
        report(f"{type(error).__name__}: {error}")
        unknown = Inventory(version=None, pulled=dict.fromkeys(available), loaded=None)
        return dict.fromkeys(dispatcher.hosts, unknown)


def residency_calls(models: int) -> int:
    """How many calls `check_residency` makes at most."""
    return 1 if models == 1 else 2 * models


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
    short = {**(options or {}), "temperature": 0, "seed": 0, "num_predict": 8}

    def ask_all() -> dict[str, Usage]:
        usages = {}
        for model in dict.fromkeys(map(short_name, generating)):
            reply = _reply(dispatcher, Call(model=model, prompt="Say yes.", options=short))
            usages[model] = reply.usage or Usage()
        if embedding is not None:
            dispatcher.embed(embedding, ["yes"])
            usages[short_name(embedding)] = Usage()  # a load shows in the list of models alone
        return usages

    first = ask_all()
    load_s = max(usage.load_s for usage in first.values())
    if len(first) == 1 or len(dispatcher.hosts) > 1:
        return Residency(displaced=None, load_s=load_s)
    (inventory,) = find_inventories(dispatcher).values()
    absent: set[str] = set()
    if inventory.loaded is not None:
        absent = first.keys() - set(map(short_name, inventory.loaded))
        if next(reversed(first)) in absent:  # models leave at once (OLLAMA_KEEP_ALIVE=0)
            return Residency(displaced=None, load_s=load_s)
    again = ask_all()
    load_s = max(load_s, *(usage.load_s for usage in again.values()))
    if inventory.loaded is None and not load_s:
        return Residency(displaced=None, load_s=load_s)
    loaded_again = {model for model, usage in again.items() if _waited_for_load(usage)}
    return Residency(displaced=frozenset(absent | loaded_again), load_s=load_s)


def _waited_for_load(usage: Usage) -> bool:
    return usage.load_s > max(_LOAD_S, _LOAD_SHARE * (usage.total_s - usage.load_s))


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What a burst showed; a speed is of a reply's tokens, by the wall clock."""

    model: str
    at_once: int
    """The most calls that were under way at once."""
    slots: int | None
    """How many of them were served at once, over all servers; None: that is not known."""
    busy_slots: float
    """How many were served at once on the mean; 0: the server does not report it."""
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
    """Ask questions alone, twice each, and many at once.

    Args:
        dispatcher: remembers no replies (`memory_bytes` 0).
        questions: of one model, repeatable.
        most_s: seconds that it may take; more calls at once are not tried where they would take
            longer, though the fewest are.

    Raises:
        OllamaError: a call failed; BadReplyError: no question that was asked alone got a word.
    """
    end_s = time.monotonic() + most_s
    began_s = time.monotonic()
    alone = [_reply(dispatcher, question) for question in [*questions] * _ALONE]
    alone_s = time.monotonic() - began_s
    if all(reply.error for reply in alone) and alone[0].error:
        raise alone[0].error
    first, second = alone[: len(questions)], alone[len(questions) :]
    for at_once, more in zip(AT_ONCE, (*AT_ONCE[1:], math.inf), strict=True):
        asked = [number % len(questions) for number in range(_TIMES * at_once)]
        before_s, began_s = dispatcher.totals()["busy_s"], time.monotonic()
        full = _together(dispatcher, [questions[number] for number in asked], at_once)
        full_s = time.monotonic() - began_s
        busy = (dispatcher.totals()["busy_s"] - before_s) / full_s
        slots = _slots_of(dispatcher, questions[0].model)
        is_sure = slots is not None and round(busy) <= slots <= at_once
        # More calls take as long as if none of them could be served beside another.
        if is_sure or time.monotonic() + full_s * more / at_once > end_s:
            break
    equal_alone, asked_alone = _equal(first, second)
    equal_full, asked_full = _equal([first[number] for number in asked], full)
    return Burst(
        model=questions[0].model,
        at_once=dispatcher.max_in_flight_seen,
        # Those that are busy on the mean can be no more than there are.
        slots=None if slots is None else max(slots, round(busy)),
        busy_slots=busy,
        tokens_per_s_alone=_speed(alone, alone_s),
        tokens_per_s_full=_speed(full, full_s),
        equal_alone=equal_alone,
        asked_alone=asked_alone,
        equal_full=equal_full,
        asked_full=asked_full,
    )


def _slots_of(dispatcher: Dispatcher, model: str) -> int | None:
    """The slots of a model over all servers; None while those of one are not known."""
    capacities = dispatcher.servers.capacities().items()
    slots = [found.slots for (_, name), found in capacities if name == short_name(model)]
    return sum(filter(None, slots)) if slots and None not in slots else None


def _reply(dispatcher: Dispatcher, call: Call) -> Completion:
    """A reply; one without a word costs as much as another, and is one, too."""
    reply = dispatcher.generate(call)
    if reply.error and not isinstance(reply.error, BadReplyError):
        raise reply.error
    return reply


def _together(dispatcher: Dispatcher, calls: Sequence[Call], at_once: int) -> list[Completion]:
    try:
        return map_parallel(partial(_reply, dispatcher), calls, at_once)
    except ParallelError as error:
        raise error.__cause__ or error from None


def _equal(ones: Sequence[Completion], others: Sequence[Completion]) -> tuple[int, int]:
    """How many pairs of replies have the same words, of how many that have words."""
    pairs = zip(ones, others, strict=True)
    equal = [one.text == other.text for one, other in pairs if not (one.error or other.error)]
    return sum(equal), len(equal)


def _speed(replies: Sequence[Completion], wall_s: float) -> float | None:
    tokens = sum(reply.usage.completion_tokens for reply in replies if reply.usage)
    return tokens / wall_s if tokens else None
