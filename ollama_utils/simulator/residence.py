"""Which models are in memory: loading, swapping and unloading as Ollama's scheduler does it.

After `server/sched.go` of Ollama. A request whose model is loaded, with the runner options it asks for, uses
it at once. All others wait in one queue, of which the first is served alone: its model is loaded if there is
room; if not, a victim is chosen, the first waits until that victim has no request left, and everybody behind
it waits too. Meanwhile requests for the victim still join it: a busy victim starves the queue, and one whose
requests carry `keep_alive` is not even unloaded when it falls idle, since that overwrites the mark of a
victim (ollama issue 17408).

What is simplified: a model is in memory in full or not at all, of one size whatever its context; one model
loads at a time, and a request that came while its model loads keeps its place in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping

from ollama_utils.simulator.agenda import Agenda, Entry
from ollama_utils.simulator.counters import Counters
from ollama_utils.simulator.decoding import Batch
from ollama_utils.simulator.durations import FOR_EVER_S
from ollama_utils.simulator.profiles import Pace
from ollama_utils.simulator.runners import Limits, Model, Request, Resident, Runner
from ollama_utils.simulator.slots import Slots
from ollama_utils.simulator.wire import ApiError

BUSY = "server busy, please try again.  maximum pending requests exceeded"
"""What the 503 says when the queue for loading is full."""


class Residence:
    """The models in memory and the requests that wait for one.

    Args:
        agenda: whose time it follows.
        pace: how long loading and unloading take.
        limits: how much there is room for.
        models: the size of each model and whether it has one slot.
        counters: are told of loads and swaps.
    """

    def __init__(
        self, *, agenda: Agenda, pace: Pace, limits: Limits, models: Mapping[str, Model], counters: Counters
    ) -> None:
        self._agenda = agenda
        self._pace = pace
        self._limits = limits
        self._slots = limits.slots
        self._models = models
        self._counters = counters
        self._runners: dict[str, Runner] = {}
        self._queue: list[Request] = []
        self._load: Entry | None = None
        self._victim: Runner | None = None

    @property
    def waiting(self) -> int:
        """How many requests wait for a model."""
        return len(self._queue)

    @property
    def in_line(self) -> int:
        """How many calls wait for a slot of a model in memory."""
        return sum(runner.slots.waiting for runner in self._runners.values())

    def residents(self) -> list[Resident]:
        """The models in memory, also one on its way there; the longest to stay comes first."""
        shown = [
            Resident(model=each.model, num_ctx=each.options.num_ctx, stays_s=self._stays_s(each))
            for each in self._runners.values()
        ]
        return sorted(shown, key=lambda each: -each.stays_s)

    def ask(self, request: Request) -> None:
        """Use a model as soon as it can be; `ready` is called at once if it is loaded.

        Raises:
            ApiError: 503, too many wait; 500, the model is larger than the memory.
        """
        runner = self._runners.get(request.model)
        if runner is not None and not runner.loading and request.options.served_by(runner.options):
            self._use(runner, request)
            return
        size_gb, room_gb = self._models[request.model].size_gb, self._limits.memory_gb
        if size_gb > room_gb:
            text = f"model requires more system memory ({_gib(size_gb)}) than is available ({_gib(room_gb)})"
            raise ApiError(500, text)
        if len(self._queue) >= max(1, self._limits.max_queue):
            raise ApiError(503, BUSY)
        self._queue.append(request)
        self._serve()

    def withdraw(self, request: Request) -> None:
        """Leave the queue; a load under way for this request is given up."""
        if request not in self._queue:
            return
        if request is self._queue[0]:
            if self._load is not None:
                del self._runners[request.model]
            self._agenda.cancel(self._load)
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
            self._doom(runner)

    def resize(self, slots: int) -> None:
        """Give every model `slots` slots from now on, but for those that have one."""
        self._slots = slots
        for runner in self._runners.values():
            if not runner.one_slot:
                runner.slots.resize(slots)

    def _serve(self) -> None:
        """Serve the queue in order, up to the first request that must wait."""
        while self._queue and self._load is None and self._victim is None:
            request = self._queue[0]
            runner = self._runners.get(request.model)
            if runner is not None and request.options.served_by(runner.options):
                self._queue.pop(0)
                self._use(runner, request)
            elif victim := runner or self._find_victim(request):
                self._victim = victim
                self._doom(victim)
            else:
                self._begin_load(request)

    def _find_victim(self, request: Request) -> Runner | None:
        """The model to unload before another can be loaded, if there is no room for it."""
        used_gb = sum(runner.size_gb for runner in self._runners.values())
        size_gb = self._models[request.model].size_gb
        fits = used_gb + size_gb <= self._limits.memory_gb
        if fits and len(self._runners) < self._limits.max_loaded_models:
            return None
        # The idle one with the shortest keep-alive, else the busy one with the shortest.
        return min(self._runners.values(), key=lambda each: (each.users > 0, each.keep_alive_s, each.model))

    def _begin_load(self, request: Request) -> None:
        model = self._models[request.model]
        keep_alive_s = request.keep_alive_s
        self._runners[request.model] = Runner(
            model=request.model,
            size_gb=model.size_gb,
            one_slot=model.one_slot,
            options=request.options,
            slots=Slots(1 if model.one_slot else self._slots),
            batch=Batch(self._pace, max(1, request.options.num_batch)),
            keep_alive_s=self._limits.keep_alive_s if keep_alive_s is None else keep_alive_s,
        )
        load_s = self._pace.load_s(model.size_gb)
        self._load = self._agenda.at(self._agenda.now_s + load_s, self._end_load)

    def _end_load(self) -> None:
        self._load = None
        request = self._queue[0]
        self._runners[request.model].loading = False
        self._counters.loads += 1
        self._serve()

    def _use(self, runner: Runner, request: Request) -> None:
        runner.users += 1
        self._agenda.cancel(runner.expiry)
        if request.keep_alive_s is not None:
            runner.keep_alive_s = request.keep_alive_s
        request.ready(runner)

    def _doom(self, runner: Runner) -> None:
        """Have a model unloaded as soon as it is idle."""
        self._agenda.cancel(runner.expiry)
        runner.keep_alive_s = 0.0
        if not runner.users:
            self._unload(runner)

    def _idle(self, runner: Runner) -> None:
        if runner.keep_alive_s <= 0:
            self._unload(runner)
            return
        runner.expires_s = self._agenda.now_s + runner.keep_alive_s
        if runner.keep_alive_s < FOR_EVER_S:
            runner.expiry = self._agenda.at(runner.expires_s, lambda: self._unload(runner))

    def _unload(self, runner: Runner) -> None:
        del self._runners[runner.model]
        if self._victim is not None:
            self._counters.swaps += 1
            self._agenda.at(self._agenda.now_s + self._pace.settle_s, self._go_on)

    def _stays_s(self, runner: Runner) -> float:
        if runner.loading or runner.users:
            return runner.keep_alive_s
        return runner.expires_s - self._agenda.now_s

    def _go_on(self) -> None:
        """There is room, or may be: whoever waited for it looks again."""
        self._victim = None
        self._serve()


def _gib(size_gb: float) -> str:
    """A size as Ollama writes it."""
    return f"{size_gb * 1e9 / 2**30:.1f} GiB"
