"""Loading and queueing: a call's way through the server, in virtual time that follows a clock.

A call waits for its model (`Server`), then for one of the model's slots, has its prompt read and its reply
written (`simulator.decoding`), and leaves (`Turn`). All of it happens on an agenda: a slot passes on,
and a model falls idle, at the very moment a call ends, not when anybody looks, so late wake-ups do not add up
and a queue of n calls of s seconds on one slot ends after n * s. `Engine` brings the agenda up to the event
loop's clock whenever somebody comes or goes and at the next moment due: the loop's timers decide only when a
handler hears of a moment, never when the moment was.

Models are loaded, swapped and unloaded as in `server/sched.go` of Ollama. A request whose model is loaded,
with the runner options it asks for, uses it at once. All others wait in one queue, of which the first is
served alone: its model is loaded if there is room; if not, a victim is chosen, the first waits until that
victim has no request left, and everybody behind it waits too. Meanwhile requests for the victim still join
it: a busy victim starves the queue, and one whose requests carry `keep_alive` is not even unloaded when it
falls idle, since that overwrites the mark of a victim (ollama issue 17408).

What is simplified: a model is in memory in full or not at all, of one size whatever its context; one model
loads at a time, and a request that came while its model loads keeps its place in the queue. Left out: prompt
caches, so that every prompt is read in full; and the one to three milliseconds that Ollama itself spends on a
call, in whose place stands what this server spends on it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from simulator.agenda import Action, Agenda, Entry, Slots
from simulator.counters import Clock, Counters, SlotUse
from simulator.decoding import Batch, Machine, Sequence
from simulator.keep_alive import FOR_EVER_S, keep_alive_s
from simulator.profiles import Pace
from simulator.wire import ApiError, Body

_LEAST_CONTEXT = 4


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """The options that a model is loaded with; another value loads it anew."""

    num_ctx: int = 4096
    num_batch: int = 512
    num_gpu: int = -1
    main_gpu: int = 0
    use_mmap: bool | None = None
    num_thread: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RunnerOptions:
        """Those among a request's options, whose types were checked; the rest at Ollama's defaults."""
        names = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread")
        given: dict[str, Any] = {name: int(options[name]) for name in names if options.get(name) is not None}
        context = max(given.pop("num_ctx", cls.num_ctx), _LEAST_CONTEXT)
        return cls(num_ctx=context, use_mmap=options.get("use_mmap"), **given)

    def served_by(self, loaded: RunnerOptions) -> bool:
        """Whether a model loaded with other options will do: any `num_gpu` does for one that is below 0."""
        return loaded == self or (self.num_gpu < 0 and loaded == replace(self, num_gpu=loaded.num_gpu))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server's environment sets."""

    slots: int = 1
    """Calls that each model serves at once: OLLAMA_NUM_PARALLEL."""
    max_queue: int = 512
    """Requests that may wait for a model to load, the one it loads for included: OLLAMA_MAX_QUEUE. With 0
    one is taken at a time."""
    max_loaded_models: float = 3
    """Models in memory at once: OLLAMA_MAX_LOADED_MODELS."""
    memory_gb: float = float("inf")
    """What the models in memory may take together."""
    keep_alive_s: float = 300.0
    """Seconds that a model stays after its last use, when its requests do not say: OLLAMA_KEEP_ALIVE."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What loading a model needs to know of it."""

    size_gb: float = 4.0
    one_slot: bool = False
    """Whether it has one slot whatever the limits say, as models that only embed have."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a call asks of the server's time."""

    model: str
    prompt_tokens: int = 0
    reply_tokens: int = 0
    options: RunnerOptions = field(default_factory=RunnerOptions)
    keep_alive_s: float | None = None
    """Seconds that the model stays in memory afterwards; None leaves it to the server."""

    @classmethod
    def of(cls, model: str, body: Body, *, prompt_tokens: int = 0, reply_tokens: int = 0) -> Call:
        """The call that a request asks for, whose options and `keep_alive` were checked."""
        keep_alive = body.get("keep_alive")
        return cls(
            model=model,
            prompt_tokens=prompt_tokens,
            reply_tokens=reply_tokens,
            options=RunnerOptions.of(body.get("options") or {}),
            keep_alive_s=None if keep_alive is None else keep_alive_s(keep_alive),
        )


@dataclass(eq=False, kw_only=True)
class Runner:
    """A model in memory, or on its way there."""

    model: str
    needs: Model
    options: RunnerOptions
    slots: Slots
    batch: Batch
    keep_alive_s: float
    loading: bool = True
    users: int = 0
    """Requests that it has, waiting for a slot or in one."""
    expires_s: float = 0.0
    """When it is unloaded, as of its last use."""
    expiry: Entry | None = None


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model in memory, as it is shown."""

    model: str
    num_ctx: int
    stays_s: float
    """Seconds for which it stays if nobody comes."""


@dataclass(eq=False)
class ModelRequest:
    """A call's request for its model in memory."""

    call: Call
    ready: Callable[[Runner], None]
    """Is called with the loaded model, which is then to be given back with `release`."""


BUSY = "server busy, please try again.  maximum pending requests exceeded"
"""What the 503 says when the queue for loading is full."""


class Server:
    """The models in memory, the requests that wait for one, and the machine that all calls share.

    Args:
        agenda: whose time it follows.
        pace: how long everything takes.
        limits: what the server's environment sets.
        models: the models that are here, by full name.
        counters: count what happens.
    """

    def __init__(
        self, *, agenda: Agenda, pace: Pace, limits: Limits, models: Mapping[str, Model], counters: Counters
    ) -> None:
        self.agenda = agenda
        self.counters = counters
        self._pace = pace
        self._limits = limits
        self._slots = limits.slots
        self._models = models
        self._speed = 1.0
        self._machines: WeakValueDictionary[int, Machine] = WeakValueDictionary()
        self._machine = self._new_machine()
        self._runners: dict[str, Runner] = {}
        self._queue: list[ModelRequest] = []
        self._load: Entry | None = None
        self._load_left_s = self._load_since_s = 0.0
        """Seconds of loading that were left at a moment, at the speed of the profile."""
        self._victim: Runner | None = None

    def waiting(self) -> dict[str, int]:
        """How many requests wait for a model, and how many calls for a slot of a model in memory."""
        waiting_for_slot = sum(runner.slots.waiting for runner in self._runners.values())
        return {"waiting_for_load": len(self._queue), "waiting_for_slot": waiting_for_slot}

    def loaded_models(self) -> list[LoadedModel]:
        """The models in memory, also one on its way there; the longest to stay comes first."""
        shown = [
            LoadedModel(model=each.model, num_ctx=each.options.num_ctx, stays_s=self._stays_s(each))
            for each in self._runners.values()
        ]
        return sorted(shown, key=lambda each: -each.stays_s)

    def begin(self, call: Call, *, started: Action, arrived_s: float | None = None) -> Turn:
        """Let a call in.

        Args:
            call: what it asks for.
            started: is called when it holds a slot.
            arrived_s: when it came; now when left out.

        Raises:
            ApiError: there is no room for the request, or none for the model.
        """
        now_s = self.agenda.now_s
        turn = Turn(call, now_s if arrived_s is None else min(arrived_s, now_s), self, started)
        self.request(turn.model_request)
        return turn

    def workplace(self, runner: Runner) -> tuple[Machine, Batch]:
        """Where a call is worked on: with the model's other calls, or alone where nothing is shared."""
        if self._pace.profile.shared:
            return self._machine, runner.batch
        return self._new_machine(), Batch(self._pace, runner.options.num_batch)

    def request(self, request: ModelRequest) -> None:
        """Use a model as soon as it can be; `ready` is called at once if it is loaded.

        Raises:
            ApiError: 503, too many wait; 500, the model is larger than the memory.
        """
        call = request.call
        runner = self._runners.get(call.model)
        if runner is not None and not runner.loading and call.options.served_by(runner.options):
            self._use(runner, request)
            return
        size_gb, room_gb = self._models[call.model].size_gb, self._limits.memory_gb
        if size_gb > room_gb:
            text = f"model requires more system memory ({_gib(size_gb)}) than is available ({_gib(room_gb)})"
            raise ApiError(500, text)
        if len(self._queue) >= max(1, self._limits.max_queue):
            raise ApiError(503, BUSY)
        self._queue.append(request)
        self._serve()

    def withdraw(self, request: ModelRequest) -> None:
        """Leave the queue; a load under way for this request is given up."""
        if request not in self._queue:
            return
        if request is self._queue[0]:
            if self._load is not None:
                del self._runners[request.call.model]
            self.agenda.cancel(self._load)
            self._load = self._victim = None
        self._queue.remove(request)
        self._serve()

    def release(self, runner: Runner) -> None:
        """A request is done with a model."""
        runner.users -= 1
        if not runner.users:
            self._idle(runner)

    def expire(self, model: str) -> None:
        """Unload a model as soon as it has no request: what `keep_alive: 0` without any words asks for."""
        runner = self._runners.get(model)
        if runner is not None and not runner.loading:
            self._unload_when_idle(runner)

    def resize(self, slots: int) -> None:
        """Give every model `slots` slots from now on, but for those that have one."""
        self._slots = slots
        for runner in self._runners.values():
            if not runner.needs.one_slot:
                runner.slots.resize(slots)

    def set_speed(self, speed: float) -> None:
        """Work and load at another speed from now on, also what is under way: 1 is the profile's, 0 none."""
        if self._load is not None:
            self._load_left_s -= (self.agenda.now_s - self._load_since_s) * self._speed
        self._speed = speed
        for machine in list(self._machines.values()):
            machine.set_speed(speed)
        if self._load is not None:
            self.agenda.cancel(self._load)
            self._plan_load()

    def _new_machine(self) -> Machine:
        machine = Machine(self.agenda, self._speed)
        self._machines[id(machine)] = machine
        return machine

    def _plan_load(self) -> None:
        """Enter the end of the load, at no moment while everything stands still."""
        self._load_since_s = self.agenda.now_s
        wait_s = self._load_left_s / self._speed if self._speed else math.inf
        self._load = self.agenda.at(self.agenda.now_s + wait_s, self._end_load)

    def _serve(self) -> None:
        """Serve the queue in order, up to the first request that must wait."""
        while self._queue and self._load is None and self._victim is None:
            request = self._queue[0]
            runner = self._runners.get(request.call.model)
            if runner is not None and request.call.options.served_by(runner.options):
                self._queue.pop(0)
                self._use(runner, request)
            elif victim := runner or self._find_victim(request.call):
                self._victim = victim
                self._unload_when_idle(victim)
            else:
                self._begin_load(request.call)

    def _find_victim(self, call: Call) -> Runner | None:
        """The model to unload before another can be loaded, if there is no room for it."""
        used_gb = sum(runner.needs.size_gb for runner in self._runners.values())
        size_gb = self._models[call.model].size_gb
        fits = used_gb + size_gb <= self._limits.memory_gb
        if fits and len(self._runners) < self._limits.max_loaded_models:
            return None
        # The idle one with the shortest keep-alive, else the busy one with the shortest.
        return min(self._runners.values(), key=lambda each: (each.users > 0, each.keep_alive_s, each.model))

    def _begin_load(self, call: Call) -> None:
        needs = self._models[call.model]
        self._runners[call.model] = Runner(
            model=call.model,
            needs=needs,
            options=call.options,
            slots=Slots(1 if needs.one_slot else self._slots),
            batch=Batch(self._pace, call.options.num_batch),
            keep_alive_s=self._limits.keep_alive_s if call.keep_alive_s is None else call.keep_alive_s,
        )
        self._load_left_s = self._pace.load_s(needs.size_gb)
        self._plan_load()

    def _end_load(self) -> None:
        self._load = None
        request = self._queue[0]
        self._runners[request.call.model].loading = False
        self.counters.loads += 1
        self._serve()

    def _use(self, runner: Runner, request: ModelRequest) -> None:
        runner.users += 1
        self.agenda.cancel(runner.expiry)
        if request.call.keep_alive_s is not None:
            runner.keep_alive_s = request.call.keep_alive_s
        request.ready(runner)

    def _unload_when_idle(self, runner: Runner) -> None:
        """Have a model unloaded as soon as it is idle."""
        self.agenda.cancel(runner.expiry)
        runner.keep_alive_s = 0.0
        if not runner.users:
            self._unload(runner)

    def _idle(self, runner: Runner) -> None:
        if runner.keep_alive_s <= 0:
            self._unload(runner)
            return
        runner.expires_s = self.agenda.now_s + runner.keep_alive_s
        if runner.keep_alive_s < FOR_EVER_S:
            runner.expiry = self.agenda.at(runner.expires_s, lambda: self._unload(runner))

    def _unload(self, runner: Runner) -> None:
        del self._runners[runner.model]
        if self._victim is not None:
            self.counters.swaps += 1
            self.agenda.at(self.agenda.now_s + self._pace.settle_s, self._go_on)

    def _stays_s(self, runner: Runner) -> float:
        if runner.loading or runner.users:
            return runner.keep_alive_s
        return runner.expires_s - self.agenda.now_s

    def _go_on(self) -> None:
        """There is room, or may be: whoever waited for it looks again."""
        self._victim = None
        self._serve()


def _gib(size_gb: float) -> str:
    """A size as Ollama writes it."""
    return f"{size_gb * 1e9 / 2**30:.1f} GiB"


class Turn:
    """A call under way; its moments are seconds on the agenda's clock, not a number until they come.

    Args:
        call: what it asks for.
        arrived_s: when the call came.
        server: where it goes through.
        started: is called when the call holds a slot.
    """

    def __init__(self, call: Call, arrived_s: float, server: Server, started: Action) -> None:
        self.call = call
        self.arrived_s = arrived_s
        self.entered_s = server.agenda.now_s
        """When it asked for its model: the server had read the request."""
        self.loaded_s = math.nan
        """When the model was in memory for it."""
        self.started_s = math.nan
        """When it got a slot."""
        self.decoding_s = math.nan
        """When its prompt was read and decoding began."""
        self.due_s = math.nan
        """When the last token was written and the slot passed on."""
        self._server = server
        self._started = started
        self.model_request = ModelRequest(call, self._take_slot)
        self._sequence = Sequence(call.prompt_tokens, call.reply_tokens, self._decode, self._end)
        self._runner: Runner | None = None
        self._work: tuple[Machine, Batch] | None = None
        self._slot_use: SlotUse | None = None
        self.over = False
        """Whether it gave back its slot: at its end, or because its client left."""

    @property
    def load_s(self) -> float:
        """Seconds for which it waited for its model."""
        return self.loaded_s - self.entered_s

    @property
    def prefill_s(self) -> float:
        """Seconds in its slot until the prompt was read."""
        return self.decoding_s - self.started_s

    @property
    def decode_s(self) -> float:
        """Seconds in which the reply was written."""
        return self.due_s - self.decoding_s

    @property
    def total_s(self) -> float:
        """Seconds from its arrival to its end; what the other three leave of it is the wait for a slot."""
        return self.due_s - self.arrived_s

    def mark(self, tokens: float, action: Action) -> None:
        """Have an action called when so many tokens are written; at once when the call has ended.

        Args:
            tokens: parts of one too; more than the reply has means its end.
            action: what is called; the call must hold a slot, or have ended.
        """
        if self.over or self._work is None:
            action()
        else:
            machine, batch = self._work
            machine.mark(batch, self._sequence, min(tokens, self.call.reply_tokens), action)

    def leave(self) -> None:
        """Give back the slot and the model, or the place in line for them; a second time does nothing."""
        if self.over:
            return
        self.over = True
        if self._runner is None:
            self._server.withdraw(self.model_request)
            return
        if self._work is None or self._slot_use is None:
            self._runner.slots.give_up(self)
        else:
            machine, batch = self._work
            decoded = machine.remove(batch, self._sequence)
            # Rounded first: 31.999999 tokens are 32.
            self._server.counters.slot_freed(
                self._slot_use, self._server.agenda.now_s, int(round(decoded, 6))
            )
            self._runner.slots.give_back()
        self._server.release(self._runner)

    def _take_slot(self, runner: Runner) -> None:
        self._runner = runner
        self.loaded_s = self._server.agenda.now_s
        runner.slots.take(self, lambda: self._start(runner))

    def _start(self, runner: Runner) -> None:
        self.started_s = self._server.agenda.now_s
        self._slot_use = SlotUse(self.call.model, self.started_s)
        waited_s = self.started_s - self.loaded_s
        self._server.counters.slot_taken(self._slot_use, load_wait_s=self.load_s, slot_wait_s=waited_s)
        machine, batch = self._work = self._server.workplace(runner)
        machine.add(batch, self._sequence)
        self._started()

    def _decode(self) -> None:
        self.decoding_s = self._server.agenda.now_s

    def _end(self) -> None:
        self.due_s = self._server.agenda.now_s
        self.leave()


_LONGEST_S = 3600.0
"""Event loops take no timer for a century."""


class Engine:
    """The slots and models of a server, and the clock they share.

    Args:
        pace: how long everything takes.
        limits: what the server's environment sets.
        models: the models that are here, by full name.
        counters: count what happens.
        clock: seconds, the event loop's own.
    """

    def __init__(
        self, *, pace: Pace, limits: Limits, models: Mapping[str, Model], counters: Counters, clock: Clock
    ) -> None:
        self.slots = limits.slots
        self.clock = clock
        self._agenda = Agenda(clock())
        self._server = Server(agenda=self._agenda, pace=pace, limits=limits, models=models, counters=counters)
        self._timer: asyncio.TimerHandle | None = None

    def loaded_models(self) -> list[LoadedModel]:
        """The models in memory, the longest to stay first."""
        with self._present():
            return self._server.loaded_models()

    def waiting(self) -> dict[str, int]:
        """How many calls wait now, for a model and for a slot."""
        with self._present():
            return self._server.waiting()

    def resize(self, slots: int) -> None:
        """Give every model `slots` slots from now on, but for those that have one whatever is set."""
        self.slots = slots
        with self._present():
            self._server.resize(slots)

    def set_speed(self, speed: float) -> None:
        """Work at another speed from now on: 1 is the profile's, 0 stands still."""
        with self._present():
            self._server.set_speed(speed)

    def unload(self, model: str) -> None:
        """Unload a model as soon as no call uses it."""
        with self._present():
            self._server.expire(model)

    async def load(self, call: Call) -> None:
        """Bring a model into memory, for a call without words.

        Raises:
            ApiError: there is no room for the request, or none for the model.
        """
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give_back(runner: Runner) -> None:
            self._server.release(runner)
            _settle(loaded)

        request = ModelRequest(call, give_back)
        try:
            with self._present():
                self._server.request(request)
            await loaded
        finally:
            with self._present():
                self._server.withdraw(request)

    @asynccontextmanager
    async def turn(self, call: Call, *, arrived_s: float) -> AsyncIterator[Turn]:
        """Hold one of the model's slots; leaving early gives it back at once, or the place in line.

        Raises:
            ApiError: there is no room for the request, or none for the model.
        """
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._present():
            turn = self._server.begin(call, started=partial(_settle, started), arrived_s=arrived_s)
        try:
            await started
            yield turn
        finally:
            if not turn.over:
                with self._present():
                    turn.leave()

    async def written(self, turn: Turn, tokens: float) -> None:
        """Wait until so many tokens of a reply are written; all of them are its end."""
        if turn.over:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._present():
            turn.mark(tokens, partial(_settle, reached))
        await reached

    @contextmanager
    def _present(self) -> Iterator[None]:
        """Bring virtual time up to the clock, before and after what is done; then wait for what comes."""
        self._agenda.advance(self.clock())
        try:
            yield
        finally:
            self._agenda.advance(self._agenda.now_s)
            self._wait()

    def _wait(self) -> None:
        """Set the timer for the next moment; one that is set for an earlier moment will look again."""
        next_s = self._agenda.next_s()
        if next_s == math.inf or (self._timer is not None and self._timer.when() <= next_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(min(next_s, self._agenda.now_s + _LONGEST_S), self._wake)

    def _wake(self) -> None:
        self._timer = None
        with self._present():
            pass


def _settle(future: asyncio.Future[None]) -> None:
    """Wake whoever waits, unless it has left."""
    if not future.done():
        future.set_result(None)
