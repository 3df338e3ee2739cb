"""Does a server do what a run relies on? Eleven checks, each a function of a server.

`run_checks` goes through `CHECKS` in order, until they are done or the time is over. Calls go out
by the server's client, one attempt each: what a dispatcher would retry or wait out is to be seen
here. Nothing pulls, deletes or unloads a model, or carries a `keep_alive`.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ollama_utils.checkup import context_of
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    CallTimeoutError,
    CutReplyError,
    OllamaError,
    PromptTooLongError,
    ServerBusyError,
)
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
"""Each is asked twice alone, and then over and over with many calls at once."""
CALLS = {4: 12, 16: 32, 32: 64}
"""Calls at once, and calls in all; more at once as long as none is seen to wait."""
TOKENS, FEWEST_TOKENS, MOST_TOKENS = 64, 8, 512
"""The most tokens of a reply: usually; where calls are slow; where a model always thinks first."""
MOST_CONTEXT, UNKNOWN_CONTEXT = 32_768, 4_096
"""The largest context that is exceeded; the one that is assumed where the server states none."""
_NOTABLE = 1.1  # calls at once must bring so many times the tokens a second of one call alone
_FEWER_SLOTS = 1.5  # a server has too few if it states more than so many times those found
_WAITED_SHARE = 0.25  # a call has waited if its wait was longer than this share of its service
_OFTEN, _FEWEST_WAITS = 0.25, 3  # slots are counted if so many of all calls, and so many, waited
_LOAD_S = 0.1  # a load that takes longer, and longer than a tenth of the rest of its call, was one
_PATIENCE_S = 20.0  # seconds of silence after which a call is given up
_ALONE = 60  # replies are made so short that so many, one after another, fit into the time
_TEMPLATE_TOKENS = 3  # the fewest that a chat template adds to the words
_MARKERS = re.compile(r"<\|\w+\|>|\[/?INST\]|<(start|end)_of_turn>|<</?SYS>>")
_UNKNOWN_MARK = re.compile(r"\s*(<[^<>\s]{2,30}>|\[[A-Z_]{3,30}\])")


class _Colour(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    colour: Literal["red", "green", "blue"]
    is_warm: bool


class Finding(NamedTuple):
    """What one check found."""

    verdict: Literal["holds", "does not", "cannot say"]
    seen: str
    """In numbers."""
    numbers: Mapping[str, Any] = {}
    """The same as plain data, where a program may want it."""
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
    def service_s(self) -> float:
        """How long it was served, by the server's own timings; 0 where there are none."""
        return self.usage.prefill_s + self.usage.decode_s


@dataclass(kw_only=True)
class ServerUnderTest:
    """One server, the models that a run would call there, and what the checks have seen so far."""

    name: str
    client: ModelClient
    target: str | None
    """The model that is asked; None: nobody named one, so that only the first check is made."""
    models: Sequence[str] = ()
    """All that a run calls, by short name; one that embeds is the last."""
    embedding: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Runner options of every call, such as `num_ctx`: others would load the models anew."""
    available: Sequence[str] = ()
    """The models that its list names."""
    lanes: int = 16
    """Those of the run that this server has to serve."""
    slots_setting: str = "OLLAMA_NUM_PARALLEL="
    """What gives it more slots, up to their number."""
    stated_slots: int | None = None
    is_simulated: bool = False
    end_s: float = math.inf
    """When the time is over, by the monotonic clock."""
    findings: list[Finding] = field(default_factory=list)
    """One a check that was made, in the order of `CHECKS`."""
    sent: int = 0
    """Calls to models so far."""
    tokens: int = TOKENS
    alone: list[Timed] = field(default_factory=list)
    """Each question, and each again, one after another."""
    full: list[Timed] = field(default_factory=list)
    """The questions over and over, with `at_once` calls under way."""
    at_once: int = 0
    slots: int | None = None
    """How many of these were served at once; None: none was seen to wait."""
    speeds: tuple[float, float] = (0.0, 0.0)
    """Tokens a second of one call alone, and of many at once; 0: not known."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def gains_nothing(self) -> bool:
        """Whether calls at once bring no more tokens a second, though they are served at once."""
        return self.slots != 1 and all(self.speeds) and self.speeds[1] < _NOTABLE * self.speeds[0]

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.end_s - time.monotonic()

    def call(self, prompt: str, **options: object) -> Call:
        """A call to the target that is not to think; greedy and short but for the options."""
        usual = {"temperature": 0, "seed": 0, "num_predict": self.tokens}
        chosen = {**self.options, **usual, **options}
        return Call(model=self.target or "", prompt=prompt, think=False, options=chosen)

    def send(self, call: Call, patience_s: float = _PATIENCE_S) -> Completion:
        """The reply to a call, after one attempt; raises OllamaError."""
        return self.within_time(partial(self.client.generate, call), patience_s)

    def timed(self, call: Call) -> Timed:
        """The same, timed; an error stands in the reply."""
        sent_s = time.monotonic()
        try:
            reply = self.send(call)
        except OllamaError as error:
            reply = Completion(text="", error=error)
        return Timed(sent_s, time.monotonic(), reply)

    def within_time(self, ask: Callable[..., T], patience_s: float = _PATIENCE_S) -> T:
        """What one call to a model returns, its `timeout_s` so many seconds, or those left."""
        if self.left_s <= 0:
            raise CallTimeoutError(NOT_REACHED.seen)
        with self._lock:
            self.sent += 1
        return ask(timeout_s=max(0.001, min(self.left_s, patience_s)))

    def inventory(self) -> Inventory:
        """What the server says of itself; if it says nothing, the models of its list alone."""
        try:
            return self.client.inventory()
        except (BadRequestError, BadReplyError):
            return Inventory(version=None, pulled=dict.fromkeys(self.available), loaded=None)


def check_reached(server: ServerUnderTest) -> Finding:
    """It answers, and says what it is."""
    inventory = server.inventory()
    server.stated_slots = server.stated_slots or inventory.slots
    numbers = {**asdict(inventory), "slots": server.stated_slots}
    version = f"version {inventory.version}" if inventory.version else "no version stated"
    seen = f"{version}, models: {len(inventory.pulled)}"
    if server.target is None:
        return Finding("holds", seen, numbers)
    began_s = time.monotonic()
    try:
        server.send(server.call("Say yes."), server.left_s)  # the model may have to be loaded
    except CutReplyError:  # one that thinks at length
        pass
    except OllamaError as error:
        if server.left_s <= 0:
            return Finding("cannot say", f"{seen}; no reply in time", numbers, NOT_REACHED.do)
        return Finding("does not", f"{seen}; the first call failed: {describe(error)}", numbers)
    first_s, context = time.monotonic() - began_s, context_of(server.client, server.target)
    numbers |= {"first_call_s": first_s, "context": context}
    seen += f", context: {context:,} tokens" if context else ", no context stated"
    asked = server.options.get("num_ctx", 0)
    if context and context < asked:
        return Finding("does not", f"{seen}, not {asked:,}", numbers, f"--num-ctx {context}")
    return Finding("holds", f"{seen}; first call: {first_s:.2g} s", numbers)


def check_slots(server: ServerUnderTest) -> Finding:
    """Calls are served at once."""
    _measure(server)
    slots, stated = server.slots, server.stated_slots
    numbers = {"slots": slots, "at_once": server.at_once, "stated": stated}
    states = f"; it states {stated}" if stated else ""
    if not any(each.service_s for each in server.full):
        return Finding("cannot say", f"no times of service are reported{states}", numbers)
    if slots is None:
        is_all = server.at_once >= min(max(CALLS), stated or math.inf)
        do = None if is_all else "a larger --seconds asks more at once"
        return Finding("holds", f"none of {server.at_once} waited{states}", numbers, do)
    wanted = min(server.lanes, ADVISED_SLOTS)
    serve = " ollama serve" if server.slots_setting.startswith("OLLAMA") else ""
    is_worth_it = slots < wanted and not server.gains_nothing
    do = f"{server.slots_setting}{wanted}{serve}" if is_worth_it else ""
    is_short = slots * _FEWER_SLOTS < (stated or 0) or slots == 1 < server.lanes
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
    server.alone = _answered(server, [server.timed(call) for call in [*questions, *questions]])
    for at_once, calls in CALLS.items():
        began_s, asked = time.monotonic(), questions * (calls // len(questions))
        server.at_once = at_once
        server.full = _answered(server, map_parallel(server.timed, asked, at_once))
        spent_s = time.monotonic() - began_s
        server.slots = _slots_of(server.full, server.alone, at_once)
        server.speeds = _speeds(server, spent_s)
        # The next round has up to three times the calls, and is to leave time for the other checks.
        if server.slots or _turned_away(server) or 3 * spent_s > server.left_s / 2:
            return


def _speeds(server: ServerUnderTest, full_s: float) -> tuple[float, float]:
    """See `ServerUnderTest`; of calls alone the second round counts, whose prompts were read."""
    again = server.alone[len(QUESTIONS) :]
    if any(_is_load(each.usage) for each in [*again, *server.full]):
        return 0.0, 0.0
    alone_s = sum(each.ended_s - each.sent_s for each in again)
    return _tokens(again) / alone_s, _tokens(server.full) / full_s


def _tokens(calls: Sequence[Timed]) -> int:
    return sum(each.usage.completion_tokens for each in calls)


def _is_load(usage: Usage) -> bool:
    """Whether the model was loaded for a call."""
    return usage.load_s > max(_LOAD_S, 0.1 * (usage.total_s - usage.load_s))


def _answered(server: ServerUnderTest, calls: list[Timed]) -> list[Timed]:
    """The calls; raises the error of one where none has a reply, or not all in time."""
    errors = [each.reply.error for each in calls if each.reply.error]
    if errors and (len(errors) == len(calls) or server.left_s <= 0):
        raise errors[0]
    return calls


def _slots_of(calls: Sequence[Timed], alone: Sequence[Timed], at_once: int) -> int | None:
    """How many calls are served at once, by the server's own timings; None where few wait.

    So many were in service in the middle of each wait of another, by the median. What seems the
    wait of a call alone is the way there and back.
    """
    on_the_way_s = max(each.usage.queue_s for each in alone)
    served = [each for each in calls if each.service_s]
    waits = []
    for each in served:
        wait_s = each.usage.queue_s - on_the_way_s
        if wait_s > _WAITED_SHARE * each.service_s:
            waits.append(each.ended_s - each.service_s - wait_s / 2)
    if len(waits) < max(_FEWEST_WAITS, _OFTEN * len(served)):
        return None
    counts = [sum(0 < each.ended_s - at_s <= each.service_s for each in served) for at_s in waits]
    found = max(1, round(median(counts)))
    return found if found < at_once else None


def check_speed(server: ServerUnderTest) -> Finding:
    """Calls at once bring more tokens a second."""
    alone, full = server.speeds
    if not (alone and full):
        return Finding("cannot say", "no tokens are reported, or the model was being loaded")
    numbers = {"tokens_per_s_alone": alone, "tokens_per_s_full": full}
    seen = f"{alone:,.0f} tokens/s alone, {full:,.0f} with {server.at_once} at once"
    return Finding("does not" if server.gains_nothing else "holds", seen, numbers)


def check_memory(server: ServerUnderTest) -> Finding:
    """The models of all roles stay loaded.

    Each is called in turn, twice: one that is loaded again, or is in memory no more, had to leave.
    """
    names = ", ".join(server.models)
    numbers: dict[str, Any] = {"models": list(server.models), "displaced": []}
    if len(server.models) == 1:
        return Finding("holds", f"{names} has all roles", numbers)
    first, loaded, again = _call_all(server), server.inventory().loaded, _call_all(server)
    load_s = max(usage.load_s for usage in [*first.values(), *again.values()])
    if loaded is None and not load_s:
        return Finding("cannot say", f"not stated of {names}")
    displaced = {name for name, usage in again.items() if _is_load(usage)}
    if loaded is not None:
        displaced |= set(server.models) - set(map(short_name, loaded))
    numbers |= {"displaced": sorted(displaced), "load_s": load_s}
    if not displaced:
        return Finding("holds", f"{names} stay loaded", numbers)
    seen = f"of {names}, {', '.join(sorted(displaced))} had to leave; a load takes {load_s:.2g} s"
    room = f"OLLAMA_MAX_LOADED_MODELS={len(server.models)} OLLAMA_KEEP_ALIVE=5m ollama serve"
    return Finding("does not", seen, numbers, f"{room}, or one model in all roles")


def _call_all(server: ServerUnderTest) -> dict[str, Usage]:
    """A short call of each model; how long one that embeds is loaded, its reply does not say."""
    short, usages = server.call("Say yes.", num_predict=FEWEST_TOKENS), {}
    for model in server.models:
        if model == server.embedding:
            server.within_time(partial(server.client.embed, model, ["yes"]))
            continue
        ended = server.timed(replace(short, model=model))
        error = ended.reply.error
        if error and not isinstance(error, BadReplyError):  # one without a word loads it, too
            raise error
        usages[model] = ended.usage
    return usages


def check_equal(server: ServerUnderTest) -> Finding:
    """Equal requests get equal replies."""
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


def check_overlong(server: ServerUnderTest) -> Finding:
    """A prompt that is too long is refused, not cut."""
    context = context_of(server.client, server.target or "")
    if context and context > MOST_CONTEXT:
        return Finding("cannot say", f"a context of {context:,} tokens is too large to exceed here")
    words = math.ceil(1.1 * (context or UNKNOWN_CONTEXT))
    seen = f"{words:,} words" + (f" for a context of {context:,}" if context else "")
    do = server.client.larger_context
    try:
        reply = server.send(server.call("yes " * words, num_predict=FEWEST_TOKENS))
    except BadRequestError as error:
        if isinstance(error, PromptTooLongError) and error.status is None:  # our client counted
            return Finding("does not", f"{seen}: {error}", do=do)
        return Finding("holds", f"{seen}: refused with {error.status}")
    read = reply.usage.prompt_tokens if reply.usage else 0
    if context and not read:
        return Finding("does not", f"{seen}: answered", do=do)
    return Finding("cannot say", f"{seen}: answered, {read or 'no'} tokens of it are reported")


def check_thoughts(server: ServerUnderTest) -> Finding:
    """Thinking can be switched off, and is no part of an answer."""
    call = server.call("Is 17 a prime number?")
    longer = {**call.options, "num_predict": MOST_TOKENS // 2}
    try:
        off = server.send(call)
    except CutReplyError as error:
        return Finding("does not", f"off: {error}")
    if tokens := _thought_tokens(off):
        return Finding("does not", f"off: {tokens} tokens of thoughts")
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
    return Finding("holds", f"off: none; on: {_thought_tokens(on) or 'no'} tokens of thoughts")


def _thought_tokens(reply: Completion) -> int:
    usage = reply.usage or Usage()
    return usage.thought_tokens or usage.estimated_thought_tokens


def check_schema(server: ServerUnderTest) -> Finding:
    """A JSON schema is kept, and the reply ends."""
    prompt = "Name a colour, and say whether it is a warm one. Answer in JSON."
    tokens = max(TOKENS, server.tokens)
    call = server.call(prompt, num_predict=tokens)
    try:
        reply = server.send(replace(call, format=_Colour.model_json_schema()))
    except CutReplyError as error:
        return Finding("does not", str(error))
    seen = f"the reply is {reply.text!r:.100}"
    if reply.truncated:
        return Finding("does not", f"no end within {tokens} tokens; {seen}")
    try:
        _Colour.model_validate_json(reply.text)
    except ValidationError:
        return Finding("does not", seen)
    for rule in server.client.request_fields:
        if rule.startswith("response_format"):
            return Finding("does not", f"it is refused; {seen}", do=f"--request-field {rule}")
    return Finding("holds", seen)


def check_seed(server: ServerUnderTest) -> Finding:
    """A seed is obeyed."""
    prompt = "Invent a name for a small town, and say what it is known for."
    calls = [server.call(prompt, temperature=1.0, seed=number) for number in (1, 1, 2, 3)]
    texts = [server.send(call).text for call in calls]
    is_same, kinds = texts[0] == texts[1], len(set(texts[1:]))
    seen = f"{'equal' if is_same else 'two'} replies with one seed, {kinds} with three"
    return Finding("holds" if is_same and kinds > 1 else "does not", seen)


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
    return Finding("holds" if beside >= _TEMPLATE_TOKENS else "does not", seen)


def check_busy(server: ServerUnderTest) -> Finding:
    """A busy server says when to ask again (Retry-After)."""
    if not (away := _turned_away(server)):
        return Finding("cannot say", f"none of {server.at_once} calls at once was turned away")
    silent = sum(error.retry_after_s is None for error in away)
    seen = f"{len(away)} of {len(server.full)} turned away ({away[0].status}), {silent} without it"
    return Finding("does not" if silent else "holds", seen)


def _turned_away(server: ServerUnderTest) -> list[ServerBusyError]:
    """The errors of the calls at once that the server turned away because it was busy."""
    errors = [each.reply.error for each in server.full]
    return [error for error in errors if isinstance(error, ServerBusyError)]


class Check(NamedTuple):
    """One thing that a run relies on."""

    run: Callable[[ServerUnderTest], Finding]
    """The function; the first line of its docstring is what the server is to do."""
    calls: int
    """The most calls that it makes; `check_memory` makes as many to each model. One that makes none
    looks at those of `check_slots`."""
    follows: str
    """What it means for a run if the server does not do it."""
    do: str = ""
    """The flag or setting that helps then."""


CHECKS = (
    Check(check_reached, 1, "a run with these settings is not possible"),
    Check(check_slots, 1 + 2 * len(QUESTIONS) + sum(CALLS.values()), "most lanes wait"),
    Check(check_speed, 0, "more lanes, or more slots, are no faster"),
    Check(check_memory, 2, "in the worst case every call loads its model anew"),
    Check(check_equal, 0, "the same seed is not the same run", "--max-in-flight 1, or one slot"),
    Check(check_overlong, 1, "long queries are answered unread in part"),
    Check(
        check_thoughts,
        2,
        "replies are cut before the answer, or thoughts are scored",
        "--think low, --mutator-think low and a larger --think-budget",
    ),
    Check(
        check_schema,
        1,
        "verdicts of a judge cannot be read: their steps are unscored",
        "another --judge-model",
    ),
    Check(check_seed, 4, "draws cannot be repeated, or are all the same", "--target-temperature 0"),
    Check(
        check_template,
        2,
        "the model goes on with the prompt in place of answering it",
        "a model file, or a flag of the server, with the template",
    ),
    Check(
        check_busy,
        0,
        "calls are tried again after 0.5 s, then after twice as long each time",
        "a smaller --max-in-flight",
    ),
)
"""All checks, in the order of the rows."""


def most_calls(server: ServerUnderTest) -> int:
    """The most calls to models that `run_checks` makes."""
    if server.target is None:
        return 0
    models = len(server.models)
    return sum(each.calls * (models if each.run is check_memory else 1) for each in CHECKS)


def run_checks(server: ServerUnderTest) -> None:
    """Make all checks, or the first alone where no model is named; `findings` grows meanwhile.

    After a first call that was not answered no other is made.
    """
    for check in CHECKS if server.target else CHECKS[:1]:
        first = server.findings[0] if server.findings else None
        try:
            if server.left_s <= 0:
                finding = NOT_REACHED
            elif first and "first_call_s" not in first.numbers:
                finding = NOT_ANSWERED
            elif not (check.calls or server.full):
                finding = NOT_MEASURED
            else:
                finding = check.run(server)
        except OllamaError as error:
            failed = Finding("cannot say", f"the call failed: {describe(error)}")
            finding = failed if server.left_s > 0 else NOT_REACHED
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
        key, claim = check.run.__name__.removeprefix("check_"), check.run.__doc__ or ""
        row = {"check": key, "claim": claim.partition(".")[0], **found._asdict()}
        rows.append(row | {"follows": follows, "do": do if found.do is None else found.do})
    return rows
