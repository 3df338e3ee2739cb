"""Does a server do what a run relies on? A list of checks, each a function of a server.

`run_checks` goes through `CHECKS` in order, until they are done or the time is over. Calls go out
by the server's client, one attempt each: what a dispatcher would retry or wait out is to be seen
here. Nothing pulls, deletes or unloads a model, or carries a `keep_alive`.

A speed counts only where its calls found their model loaded and a prompt like theirs read before:
on a cold prompt cache rewordings seemed to take 94 % of a step that was 54 % theirs.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from ollama_utils.checkup import context_of
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    CallCancelledError,
    CallTimeoutError,
    CutReplyError,
    OllamaError,
    PromptTooLongError,
    ServerBusyError,
)
from ollama_utils.hosts import OPENAI, speaks_openai
from ollama_utils.http import key_from_environment
from ollama_utils.model_client import ModelClient
from ollama_utils.monitor import ADVISED_SLOTS
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call, Completion, Inventory, Usage, short_name
from records.errors import describe

T = TypeVar("T")
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "How does a bicycle stay upright?",
    "Name three uses of baking soda.",
    "Why is the sky blue?",
)
"""Each is asked twice alone, and then over and over with many at once."""
CALLS = {4: 12, 16: 32, 32: 64}
"""By how many are under way at once, calls in all; more at once as long as none is seen to wait."""
STEPS = 3
"""Rewordings and answers that are timed, the first of each left out."""
TOKENS, FEWEST_TOKENS, MOST_TOKENS = 64, 8, 512
"""Most tokens of a reply: mostly, where calls are slow, and where a model always thinks first."""
MOST_CONTEXT, UNKNOWN_CONTEXT = 32_768, 4_096
"""A larger context is not exceeded to see what happens; what is exceeded where none is stated."""
NOTABLE = 1.1
"""Slots that bring fewer times the tokens a second of one call alone bring nothing."""
LARGE_SHARE = 0.5
"""A share of a step for which a smaller mutator is advised."""
FEWER_SLOTS = 1.5
"""So many times fewer slots than the server states are no error of measurement."""
_WAITED_SHARE, _OFTEN, _FEWEST_WAITS = 0.25, 0.25, 3
"""A call waits for more than this share of its service, and so does this share of all calls."""
_LOAD_S, _CLOSES_S = 0.1, 0.3
_PATIENCE_S, _ALONE = 20.0, 60
"""Seconds of silence after which a call is given up; the calls alone that the time is to hold."""
_TEMPLATE_TOKENS = 3
"""Those of any chat template beside the words: what opens a turn, and what begins the reply."""
_MARKERS = re.compile(r"<\|\w+\|>|\[/?INST\]|<(start|end)_of_turn>|<</?SYS>>")
_UNKNOWN_MARK = re.compile(r"\s*(<[^<>\s]{2,30}>|\[[A-Z_]{3,30}\])")
_COLOURS = ("red", "green", "blue")
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": list(_COLOURS)},
        "is_warm": {"type": "boolean"},
    },
    "required": ["colour", "is_warm"],
    "additionalProperties": False,
}


class TimeOverError(OllamaError):
    """There is no time left for a call."""


class Finding(NamedTuple):
    """What one check found."""

    verdict: Literal["holds", "does not", "cannot say"]
    seen: str
    """In numbers."""
    numbers: Mapping[str, Any] = {}
    """The same as plain data."""
    do: str | None = None
    """The flag or setting that helps, where it is another than the check's."""


NOT_REACHED = Finding("cannot say", "the --seconds were over", do="a larger --seconds")
NOT_ANSWERED = Finding("cannot say", "no call was answered: see the first row")
NOT_MEASURED = Finding("cannot say", "calls at once were not answered")


class Timed(NamedTuple):
    """A call that has ended; seconds by the monotonic clock."""

    sent_s: float
    ended_s: float
    reply: Completion

    @property
    def usage(self) -> Usage:
        """What the server reported; zeros where it reported nothing."""
        return self.reply.usage or Usage()

    @property
    def begin_s(self) -> float:
        """When its service began, by the server's own timings; its end, where there are none."""
        return self.ended_s - self.usage.prefill_s - self.usage.decode_s

    @property
    def has_waited_for_load(self) -> bool:
        """Whether its model was loaded for it."""
        return self.usage.load_s > max(_LOAD_S, 0.1 * (self.usage.total_s - self.usage.load_s))


@dataclass(kw_only=True)
class ServerUnderTest:
    """One server, the models that a run would call there, and what the checks have seen so far."""

    name: str
    """What tables call it."""
    client: ModelClient
    target: str | None
    """The model that is asked; None: nobody named one, so that only the first check is made."""
    models: Sequence[str] = ()
    """All that a run calls, by short name."""
    embedding: str | None = None
    """The one of them that embeds; the last."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Runner options of every call, such as `num_ctx`: others would load the models anew."""
    available: Sequence[str] = ()
    """The models that its list names."""
    lanes: int = 16
    """Those of the run that is meant, which this server has to serve."""
    slots_setting: str = "OLLAMA_NUM_PARALLEL="
    """What gives it more slots, up to their number."""
    stated_slots: int | None = None
    """How many slots it says it has."""
    is_simulated: bool = False
    step: tuple[Sequence[Call], Sequence[Call]] | None = None
    """Rewordings and answers, as a run asks one model for them; None: two models do it."""
    end_s: float = math.inf
    """When the time is over, by the monotonic clock."""
    findings: list[Finding] = field(default_factory=list)
    """One a check that was made, in the order of `CHECKS`."""
    sent: int = 0
    """Calls to models so far."""
    tokens: int = TOKENS
    """The most of a reply."""
    alone: list[Timed] = field(default_factory=list)
    """Each question, and each again, one after another."""
    at_once: int = 0
    """Calls that were under way at once in `full` ..."""
    slots: int | None = None
    """... and how many of them were served at once; None: none was seen to wait."""
    full: list[Timed] = field(default_factory=list)
    """The questions over and over, many at once."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.end_s - time.monotonic()

    @property
    def is_silent(self) -> bool:
        """Whether its very first call was not answered."""
        first = self.findings[0] if self.findings else NOT_REACHED
        return first.verdict == "does not" and "first_call_s" not in first.numbers

    def call(self, prompt: str, **options: object) -> Call:
        """A call to the target that is not to think; greedy and short but for the options."""
        usual = {"temperature": 0, "seed": 0, "num_predict": self.tokens}
        chosen = {**self.options, **usual, **options}
        return Call(model=self.target or "", prompt=prompt, think=False, options=chosen)

    def send(self, call: Call) -> Completion:
        """The reply to a call, after one attempt; raises as `within_time` does."""
        return self.within_time(lambda most_s: self.client.generate(call, timeout_s=most_s))

    def timed(self, call: Call) -> Timed:
        """The same, timed; an error stands in the reply."""
        sent_s = time.monotonic()
        try:
            reply = self.send(call)
        except OllamaError as error:
            reply = Completion(text="", error=error)
        return Timed(sent_s, time.monotonic(), reply)

    def within_time(self, ask: Callable[[float], T], patience_s: float = _PATIENCE_S) -> T:
        """What one call to a model returns.

        Args:
            ask: makes it, given up after so many seconds of silence.
            patience_s: the most of these.

        Raises:
            OllamaError: as `ask` does; TimeOverError: there is no time left.
        """
        if self.left_s <= 0:
            raise TimeOverError(NOT_REACHED.seen)
        with self._lock:
            self.sent += 1
        try:
            return ask(max(0.001, min(self.left_s, patience_s)))
        except (CallTimeoutError, CallCancelledError) as error:
            if self.left_s <= 0:
                raise TimeOverError(NOT_REACHED.seen) from error
            raise


Run = Callable[[ServerUnderTest], Finding]


class Check(NamedTuple):
    """One thing that a run relies on."""

    key: str
    """In JSON."""
    claim: str
    """The first line of the function's docstring."""
    run: Run
    calls: int
    """The most that it makes; of `memory`, a model."""
    follows: str
    """What it means for a run where the claim does not hold."""
    do: str
    """The flag or setting that helps then."""


CHECKS: list[Check] = []
"""What a run relies on, in the order of the rows."""


def _check(*, calls: int = 0, follows: str, do: str = "") -> Callable[[Run], Run]:
    """Decorator: the next of `CHECKS`."""

    def add(run: Run) -> Run:
        claim = (run.__doc__ or "").partition(".")[0]
        CHECKS.append(Check(run.__name__.removeprefix("check_"), claim, run, calls, follows, do))
        return run

    return add


@_check(calls=1, follows="no run is possible as it is meant")
def check_reached(server: ServerUnderTest) -> Finding:
    """It answers, and says what it is."""
    inventory = _inventory(server)
    server.stated_slots = server.stated_slots or inventory.slots
    numbers = {**asdict(inventory), "slots": server.stated_slots}
    version = f"version {inventory.version}" if inventory.version else "no version stated"
    seen = f"{version}, models: {len(inventory.pulled)}"
    if server.target is None:
        return Finding("holds", seen, numbers)
    call, began_s = server.call("Say yes."), time.monotonic()
    try:  # the model may have to be loaded
        server.within_time(lambda s: server.client.generate(call, timeout_s=s), server.left_s)
    except CutReplyError:  # one that thinks at length
        pass
    except TimeOverError:  # which may be loading it
        return Finding("cannot say", f"{seen}; no reply in time", numbers, NOT_REACHED.do)
    except OllamaError as error:
        return Finding("does not", f"{seen}; the first call failed: {describe(error)}", numbers)
    first_s, context = time.monotonic() - began_s, context_of(server.client, server.target)
    numbers |= {"first_call_s": first_s, "context": context}
    seen += f", context: {context:,} tokens" if context else ", no context stated"
    asked = server.options.get("num_ctx", 0)
    if context and context < asked:
        return Finding("does not", f"{seen}, not {asked:,}", numbers, f"--num-ctx {context}")
    return Finding("holds", f"{seen}; first call: {first_s:.2g} s", numbers)


def _inventory(server: ServerUnderTest) -> Inventory:
    """What it says of itself; the models of its list alone, where it says no more."""
    try:
        return server.client.inventory()
    except (BadRequestError, BadReplyError):
        return Inventory(version=None, pulled=dict.fromkeys(server.available), loaded=None)


@_check(calls=1 + 2 * len(QUESTIONS) + sum(CALLS.values()), follows="most lanes wait")
def check_slots(server: ServerUnderTest) -> Finding:
    """Calls are served at once."""
    _measure(server)
    slots, stated = server.slots, server.stated_slots
    numbers = {"slots": slots, "at_once": server.at_once, "stated": stated}
    states = f"; it states {stated}" if stated else ""
    if all(each.begin_s == each.ended_s for each in server.full):
        return Finding("cannot say", f"no times of service are reported{states}", numbers)
    if slots is None:
        is_all = server.at_once >= min(max(CALLS), stated or math.inf)
        do = None if is_all else "a larger --seconds asks more at once"
        return Finding("holds", f"none of {server.at_once} waited{states}", numbers, do)
    wanted, (alone, full) = min(server.lanes, ADVISED_SLOTS), _speeds(server)
    brings = slots == 1 or not (alone and full) or full >= NOTABLE * alone
    serve = " ollama serve" if server.slots_setting.startswith("OLLAMA") else ""
    do = f"{server.slots_setting}{wanted}{serve}" if slots < wanted and brings else ""
    is_short = slots * FEWER_SLOTS < (stated or 0) or slots == 1 < server.lanes
    seen = f"{slots} of {server.at_once}, for {server.lanes} lanes{states}"
    return Finding("does not" if is_short else "holds", seen, numbers, do)


def _measure(server: ServerUnderTest) -> None:
    """Ask the questions alone, and then many at once until some wait."""
    first = server.timed(server.call(QUESTIONS[0]))
    share = server.left_s / _ALONE / max(first.ended_s - first.sent_s, 1e-9)
    server.tokens = int(min(TOKENS, max(FEWEST_TOKENS, TOKENS * share)))
    if isinstance(first.reply.error, CutReplyError):
        server.tokens = MOST_TOKENS
    questions = [server.call(text) for text in QUESTIONS]
    server.alone = _some_answered([server.timed(call) for call in [*questions, *questions]])
    for (at_once, calls), more in zip(CALLS.items(), (*CALLS.values(), math.inf)[1:], strict=True):
        asked = [questions[place % len(questions)] for place in range(calls)]
        server.at_once, began_s = at_once, time.monotonic()
        server.full = _some_answered(map_parallel(server.timed, asked, at_once))
        server.slots = slots_of(server.full, server.alone, at_once)
        foreseen_s = (time.monotonic() - began_s) * more / calls
        if server.slots or _turned_away(server) or foreseen_s > server.left_s / 2:
            return


def _some_answered(calls: list[Timed]) -> list[Timed]:
    """Calls of which some have a reply.

    Raises:
        OllamaError: none has, or the time was over meanwhile.
    """
    errors = [each.reply.error for each in calls if each.reply.error]
    over = [error for error in errors if isinstance(error, TimeOverError)]
    if over or len(errors) == len(calls):
        raise (over or errors)[0]
    return calls


def slots_of(calls: Sequence[Timed], alone: Sequence[Timed], at_once: int) -> int | None:
    """How many calls are served at once, by the server's own timings.

    So many were in service in the middle of each wait of another, by the median, and no fewer than
    were busy on the mean. What seems the wait of a call alone is the way there and back.

    Returns:
        None where few are seen to wait, or the server does not report for how long it serves.
    """
    served = [each for each in calls if each.begin_s < each.ended_s]
    on_the_way_s = max(each.usage.queue_s for each in alone)
    waits = [
        each.begin_s - (each.usage.queue_s - on_the_way_s) / 2
        for each in served
        if each.usage.queue_s - on_the_way_s > _WAITED_SHARE * (each.ended_s - each.begin_s)
    ]
    if len(waits) < max(_FEWEST_WAITS, _OFTEN * len(served)):
        return None
    counts = [sum(each.begin_s <= wait_s < each.ended_s for each in served) for wait_s in waits]
    wall_s = max(each.ended_s for each in served) - min(each.sent_s for each in served)
    busy = sum(each.ended_s - each.begin_s for each in served) / wall_s
    found = max(1, round(median(counts)), round(busy))
    return found if found < at_once else None


def _speeds(server: ServerUnderTest) -> tuple[float | None, float | None]:
    """Tokens a second of one call alone, and of many at once; None: not known.

    The first round alone, and the first calls of those at once, find their prompts unread.
    """
    again = server.alone[len(QUESTIONS) :]
    ended = sorted(server.full, key=lambda each: each.ended_s)
    later = ended[server.at_once :]
    if not later or any(each.has_waited_for_load for each in again + later):
        return None, None
    alone_s = sum(each.ended_s - each.sent_s for each in again)
    full_s = ended[-1].ended_s - ended[server.at_once - 1].ended_s
    alone, full = (sum(each.usage.completion_tokens for each in calls) for calls in (again, later))
    return (alone / alone_s, full / full_s) if alone and full and full_s else (None, None)


@_check(calls=2 * STEPS, follows="more lanes, or more slots, are no faster")
def check_speed(server: ServerUnderTest) -> Finding:
    """Calls at once bring more tokens a second."""
    if not server.full:
        return NOT_MEASURED
    alone, full = _speeds(server)
    if not (alone and full):
        return Finding("cannot say", "no tokens are reported, or the model was being loaded")
    share = _share_of_rewording(server, alone)
    numbers = {"tokens_per_s_alone": alone, "tokens_per_s_full": full, "rewording_share": share}
    seen = f"{alone:,.0f} tokens/s alone, {full:,.0f} with {server.at_once} at once"
    if share is not None:
        seen += f"; {100 * share:.0f} % of a step is its rewording"
    do = "a smaller --mutator-model" if share and share >= LARGE_SHARE else None
    is_slow = full < NOTABLE * alone and server.slots != 1
    return Finding("does not" if is_slow else "holds", seen, numbers, do)


def _share_of_rewording(server: ServerUnderTest, tokens_per_s: float) -> float | None:
    """What share of the time of a rewording and an answer the rewording takes, prompts warm.

    None where another model rewords, a load was waited for, or it would take too long.
    """
    if server.step is None:
        return None
    tokens = sum(call.options["num_predict"] for calls in server.step for call in calls[1:])
    if tokens / tokens_per_s > server.left_s / 2:
        return None
    times_s = []
    for first, *others in server.step:  # one token of the first has its prompt read
        server.timed(replace(first, options={**first.options, "num_predict": 1}))
        warm = [server.timed(call) for call in others]
        if any(each.reply.error or each.has_waited_for_load for each in warm):
            return None
        times_s.append(sum(each.ended_s - each.sent_s for each in warm))
    return times_s[0] / sum(times_s)


@_check(calls=2, follows="in the worst case every call loads its model anew")
def check_memory(server: ServerUnderTest) -> Finding:
    """The models of all roles stay loaded.

    Each is called in turn, twice: one that is loaded again, or is in memory no more, had to leave.
    """
    names = ", ".join(server.models)
    numbers: dict[str, Any] = {"models": list(server.models), "displaced": []}
    if len(server.models) == 1:
        return Finding("holds", f"{names} has all roles", numbers)
    first, loaded = _call_all(server), _inventory(server).loaded
    absent = set() if loaded is None else set(server.models) - set(map(short_name, loaded))
    if server.models[-1] in absent:
        seen = f"{server.models[-1]} left the memory as soon as it had answered"
        return Finding("cannot say", seen, do="OLLAMA_KEEP_ALIVE=5m ollama serve")
    again = _call_all(server)
    load_s = max(each.usage.load_s for each in (*first.values(), *again.values()))
    if loaded is None and not load_s:
        return Finding("cannot say", f"not stated of {names}")
    displaced = absent | {name for name, each in again.items() if each.has_waited_for_load}
    numbers |= {"displaced": sorted(displaced), "load_s": load_s}
    if not displaced:
        return Finding("holds", f"{names} stay loaded", numbers)
    seen = f"of {names}, {', '.join(sorted(displaced))} had to leave"
    do = f"OLLAMA_MAX_LOADED_MODELS={len(server.models)} ollama serve, or one model in all roles"
    return Finding("does not", f"{seen}; a load takes {load_s:.2g} s", numbers, do)


def _call_all(server: ServerUnderTest) -> dict[str, Timed]:
    """A short call of each model; how long one that embeds is loaded, its reply does not say."""
    short, ended = server.call("Say yes.", num_predict=FEWEST_TOKENS), {}
    embedding = server.embedding
    for model in server.models:
        if model == embedding:
            continue
        ended[model] = server.timed(replace(short, model=model))
        error = ended[model].reply.error
        if error and not isinstance(error, BadReplyError):  # one without a word loads it, too
            raise error
    if embedding:
        server.within_time(lambda s: server.client.embed(embedding, ["yes"], timeout_s=s))
    return ended


@_check(follows="the same seed is not the same run", do="--max-in-flight 1, or one slot")
def check_equal(server: ServerUnderTest) -> Finding:
    """Equal requests get equal replies."""
    if not server.full:
        return NOT_MEASURED
    first, again = server.alone[: len(QUESTIONS)], server.alone[len(QUESTIONS) :]
    (alone, of_alone), (full, of_full) = _equal(first, again), _equal(first, server.full)
    if not (of_alone and of_full):
        return Finding("cannot say", "no reply had words")
    numbers = {"alone": [alone, of_alone], "full": [full, of_full]}
    seen = f"{alone} of {of_alone} alone, {full} of {of_full} with {server.at_once} at once"
    if alone < of_alone:
        return Finding("does not", seen, numbers, "none: only replies that are kept stay the same")
    return Finding("does not" if full < of_full else "holds", seen, numbers)


def _equal(first: Sequence[Timed], calls: Sequence[Timed]) -> tuple[int, int]:
    """How many have the words of the first reply to their question, of how many with words."""
    pairs = [(first[place % len(first)].reply, each.reply) for place, each in enumerate(calls)]
    said = [one.text == other.text for one, other in pairs if not (one.error or other.error)]
    return sum(said), len(said)


@_check(calls=1, follows="long queries are answered unread in part")
def check_overlong(server: ServerUnderTest) -> Finding:
    """A prompt that is too long is refused, not cut."""
    context = context_of(server.client, server.target or "")
    if context and context > MOST_CONTEXT:
        return Finding("cannot say", f"a context of {context:,} tokens is too large to exceed here")
    words = math.ceil(1.1 * (context or UNKNOWN_CONTEXT))
    seen = f"{words:,} words for a context of {context:,}" if context else f"{words:,} words"
    numbers, do = {"words": words, "context": context}, server.client.larger_context
    try:
        reply = server.send(server.call("yes " * words, num_predict=FEWEST_TOKENS))
    except BadRequestError as error:
        if isinstance(error, PromptTooLongError) and error.status is None:  # our client counted
            return Finding("does not", f"{seen}: {error}", numbers, do)
        if not server.alone and not isinstance(error, PromptTooLongError):  # so is any other call
            raise
        return Finding("holds", f"{seen}: refused with {error.status}", numbers)
    read = reply.usage.prompt_tokens if reply.usage else 0
    if context and not read:
        return Finding("does not", f"{seen}: answered", numbers, do)
    tokens = f"{read:,} tokens were read" if read else "no tokens are reported"
    return Finding("cannot say", f"{seen}: answered, and {tokens}", numbers)


@_check(
    calls=2,
    follows="replies are cut before the answer, or thoughts are scored",
    do="--think low, --mutator-think low and a larger --think-budget",
)
def check_thoughts(server: ServerUnderTest) -> Finding:
    """Thinking can be switched off, and is no part of an answer."""
    call = server.call("Is 17 a prime number?")
    longer = {**call.options, "num_predict": MOST_TOKENS // 2}
    try:
        off = server.send(call)
    except CutReplyError as error:
        return Finding("does not", f"off: {error}")
    if tokens := _thought_tokens(off):
        return Finding("does not", f"off: {tokens} tokens of thoughts", {"off": tokens})
    try:
        on = server.send(replace(call, think=True, options=longer))
    except CutReplyError:  # its thoughts are known as such
        return Finding("holds", "off: none; on: thoughts alone")
    except BadRequestError:
        on = Completion(text="")
    for reply, when in ((off, "off"), (on, "on")):
        if mark := _UNKNOWN_MARK.match(reply.text):
            do = f"--thought-marks '{mark[1]}...', and what closes them"
            return Finding("does not", f"{when}: the answer begins with {mark[1]!r}", do=do)
    tokens = _thought_tokens(on)
    return Finding("holds", f"off: none; on: {tokens or 'no'} tokens of thoughts", {"on": tokens})


def _thought_tokens(reply: Completion) -> int:
    usage = reply.usage or Usage()
    return usage.thought_tokens or usage.estimated_thought_tokens


@_check(
    calls=1,
    follows="verdicts of a judge cannot be read: their steps are unscored",
    do="another --judge-model",
)
def check_schema(server: ServerUnderTest) -> Finding:
    """A JSON schema is kept, and the reply ends."""
    prompt = "Name a colour, and say whether it is a warm one. Answer in JSON."
    call = replace(server.call(prompt, num_predict=max(TOKENS, server.tokens)), format=_SCHEMA)
    try:
        reply = server.send(call)
    except CutReplyError as error:
        return Finding("does not", str(error))
    seen = f"the reply is {reply.text!r:.100}"
    if reply.truncated:
        return Finding("does not", f"no end within {call.options['num_predict']} tokens; {seen}")
    try:
        found = json.loads(reply.text)
        is_kept = found.keys() == _SCHEMA["properties"].keys() and found["colour"] in _COLOURS
    except (ValueError, RecursionError, AttributeError):
        return Finding("does not", seen)
    for rule in server.client.request_fields:
        if rule.startswith("response_format"):
            return Finding("does not", f"it is refused; {seen}", do=f"--request-field {rule}")
    is_kept = is_kept and isinstance(found["is_warm"], bool)
    return Finding("holds" if is_kept else "does not", seen)


@_check(
    calls=4, follows="draws cannot be repeated, or are all the same", do="--target-temperature 0"
)
def check_seed(server: ServerUnderTest) -> Finding:
    """A seed is obeyed."""
    prompt = "Invent a name for a small town, and say what it is known for."
    calls = [server.call(prompt, temperature=1.0, seed=number) for number in (1, 1, 2, 3)]
    texts = [server.send(call).text for call in calls]
    is_same, kinds = texts[0] == texts[1], len(set(texts[1:]))
    seen = f"{'equal' if is_same else 'two'} replies with one seed, {kinds} with three"
    return Finding("holds" if is_same and kinds > 1 else "does not", seen)


@_check(
    calls=2,
    follows="the model goes on with the prompt in place of answering it",
    do="a model file, or a flag of the server, with the template",
)
def check_template(server: ServerUnderTest) -> Finding:
    """The chat template is applied."""
    replies = [server.send(server.call(" ".join(["yes"] * words))) for words in (1, 9)]
    for reply in replies:
        if mark := _MARKERS.search(reply.text):
            return Finding("does not", f"{mark[0]!r} stands in the reply")
    one, nine = ((reply.usage or Usage()).prompt_tokens for reply in replies)
    if server.is_simulated:
        return Finding("cannot say", "the simulator has no template")
    if not 0 < one < nine:
        return Finding("cannot say", "tokens of prompts are not reported")
    beside = one - (nine - one) / 8
    seen = f"{one} tokens for 1 word, {nine} for 9: {beside:.3g} beside the words"
    return Finding("holds" if beside >= _TEMPLATE_TOKENS else "does not", seen, {"beside": beside})


@_check(calls=1, follows="a new one for each long reply; it is opened at once")
def check_connection(server: ServerUnderTest) -> Finding:
    """A connection is kept after a streamed reply.

    Seen below our client, which hides it.
    """
    host = server.client.host
    asked: dict[str, Any] = {"model": server.target, "stream": True}
    url = urlsplit(host.removeprefix(OPENAI))
    if url.scheme != "http":
        return Finding("cannot say", "it is looked at without TLS alone")
    if speaks_openai(host):
        path, again, variable = "/chat/completions", "/models", "OPENAI_API_KEY"
        asked |= {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4}
    else:
        path, again, variable = "/api/generate", "/api/tags", "OLLAMA_API_KEY"
        asked |= {"prompt": "Say yes.", "options": {**server.options, "num_predict": 4}}
    headers = {"Content-Type": "application/json"}
    if key := key_from_environment(variable):
        headers["Authorization"] = f"Bearer {key}"

    def ask(most_s: float) -> Finding:
        opened = http.client.HTTPConnection(url.hostname or "", url.port, timeout=most_s)
        try:
            opened.request("POST", url.path + path, json.dumps(asked), headers)
            reply = opened.getresponse()
            reply.read()
            if reply.status != http.client.OK:
                return Finding("cannot say", f"a streamed request got {reply.status}")
            if reply.will_close:
                return Finding("does not", "the server closes it, and says so")
            if select.select([opened.sock], [], [], _CLOSES_S)[0]:
                return Finding("does not", "the server closes it without saying so")
            opened.request("GET", url.path + again, headers=headers)
            return Finding("holds", f"the next request got {opened.getresponse().status}")
        except (OSError, http.client.HTTPException) as error:
            return Finding("cannot say", f"the call failed: {describe(error)}")
        finally:
            opened.close()

    return server.within_time(ask)


@_check(follows="calls wait .5 s, then twice as long each time", do="a smaller --max-in-flight")
def check_busy(server: ServerUnderTest) -> Finding:
    """A busy server says when to ask again (Retry-After)."""
    if not server.full:
        return NOT_MEASURED
    if not (away := _turned_away(server)):
        return Finding("cannot say", f"none of {server.at_once} calls at once was turned away")
    silent = sum(error.retry_after_s is None for error in away)
    seen = f"{len(away)} of {len(server.full)} turned away ({away[0].status}), {silent} without it"
    numbers = {"turned_away": len(away), "without": silent}
    return Finding("does not" if silent else "holds", seen, numbers)


def _turned_away(server: ServerUnderTest) -> list[ServerBusyError]:
    """Why calls of those at once were not served, where that may pass."""
    errors = [each.reply.error for each in server.full]
    return [error for error in errors if isinstance(error, ServerBusyError)]


def most_calls(server: ServerUnderTest) -> int:
    """The most calls to models that `run_checks` makes."""
    if server.target is None:
        return 0
    models = len(server.models)
    return sum(each.calls * (models if each.run is check_memory else 1) for each in CHECKS)


def run_checks(server: ServerUnderTest) -> None:
    """Make all checks, or the first alone where no model is named; `findings` grows meanwhile."""
    for check in CHECKS if server.target else CHECKS[:1]:
        if server.is_silent:
            server.findings.append(NOT_ANSWERED)
            continue
        try:
            finding = check.run(server) if server.left_s > 0 else NOT_REACHED
        except TimeOverError:
            finding = NOT_REACHED
        except OllamaError as error:
            finding = Finding("cannot say", f"the call failed: {describe(error)}")
        server.findings.append(finding)


def rows_of(server: ServerUnderTest) -> list[dict[str, Any]]:
    """The rows as plain data: check, claim, verdict, seen, follows, do, numbers.

    A check that was not reached has a row, too; where no model is named, only the first has one.
    """
    checks = CHECKS if server.target else CHECKS[:1]
    findings = [*server.findings, *[NOT_REACHED] * len(checks)]
    rows = []
    for check, found in zip(checks, findings, strict=False):
        follows, do = (check.follows, check.do) if found.verdict == "does not" else ("", "")
        row = {"check": check.key, "claim": check.claim, **found._asdict(), "follows": follows}
        rows.append(row | {"do": do if found.do is None else found.do})
    return rows
