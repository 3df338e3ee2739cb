"""Picks for each policy the way to step it: by what it offers, or by what its first steps cost."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evaluation.policies.policy import PolicySource, View
from evaluation.wrappers.batch import BatchWrapper
from evaluation.wrappers.costs import Cost, Pick, Stopwatch, count_cpus, pick_way
from evaluation.wrappers.errors import PolicyTimeoutError, WorkerLoadError, WrapperError
from evaluation.wrappers.plain import SerialWrapper, ThreadWrapper
from evaluation.wrappers.players import Player, can_batch
from evaluation.wrappers.processes import ProcessWrapper
from evaluation.wrappers.seats import Seat, Seats, seated
from evaluation.wrappers.torch_blocks import TorchWrapper
from evaluation.wrappers.wrapper import Pending

MEASURED_STEPS = 3
"""Steps of a policy that are measured before its way is picked."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """The wrappers to pick from."""

    serial: SerialWrapper
    thread: ThreadWrapper
    process: ProcessWrapper
    batch: BatchWrapper
    torch: TorchWrapper

    def close(self) -> None:
        """Close them all."""
        for way in (self.serial, self.thread, self.process, self.batch, self.torch):
            way.close()


class AutoWrapper:
    """Steps each policy in the way that fits it, and says which and why.

    Args:
        ways: the ways there are.
        jobs: how many steps may be under way at once.
        report: is told each pick, and each fallback, once for each policy's name.
    """

    def __init__(self, ways: Ways, jobs: int, report: Callable[[str], None]) -> None:
        self.ways = ways
        self._jobs = jobs
        self._report = report
        self._costs: defaultdict[str, list[Cost]] = defaultdict(list)
        self._picks: dict[str, Pick] = {}
        self._said: set[str] = set()
        self._kept: defaultdict[str, list[_AutoStep]] = defaultdict(list)
        """By name the steps that are handed in once the way is picked."""
        self._lock = threading.Lock()
        self.measuring = threading.Lock()
        """Held while a step is measured: beside others each would seem to wait."""

    def team(self, sources: Sequence[PolicySource], seeds: Sequence[int]) -> Seats:
        """The policies of a new episode."""
        shared: dict[int, Seat] = {}
        seats: list[Seat] = []
        for source, seed in zip(sources, seeds, strict=True):
            seat = shared.get(id(source)) or self._seat(source, seed, shared)
            seats.append(seat)
        return Seats(seats)

    def close(self) -> None:
        """End all threads and processes."""
        self.ways.close()

    def pick_of(self, name: str) -> Pick | None:
        """How a policy is to be stepped; None while that is open."""
        return self._picks.get(name)

    def keep(self, name: str, step: _AutoStep) -> bool:
        """Keep a step until the way of its policy is picked; False where it is picked already."""
        with self._lock:
            if name not in self._picks:
                self._kept[name].append(step)
            return name not in self._picks

    def note(self, name: str, cost: Cost) -> None:
        """Note what a step of a policy cost; the last of the first few decides."""
        with self._lock:
            if name in self._picks:
                return
            costs = self._costs[name]
            costs.append(cost)
            if len(costs) < MEASURED_STEPS:
                return
            pick, why = pick_way(costs, jobs=self._jobs, cpus=count_cpus())
            self._picks[name] = pick
            self._say(name, f"{pick}: {why}")
            kept = self._kept.pop(name, [])
        for step in kept:  # side by side from here on, though their results are asked for one by one
            step.hand_in()

    def fall_back(self, name: str, why: Exception) -> None:
        """Step a policy serially from now on, for a process cannot have it."""
        with self._lock:
            self._picks[name] = "serial"
            self._say(name, f"serial, not process: {why}")

    def _seat(self, source: PolicySource, seed: int, shared: dict[int, Seat]) -> Seat:
        if self.pick_of(source.name) == "process":
            return AutoSeat(self, source, seed, None)

        def seat(player: Player) -> Seat:
            if player.network is not None:
                self._say_once(source.name, "torch: it has a network")
                return self.ways.torch.seat(player)
            if can_batch(player.policy):
                self._say_once(source.name, "batch: it has step_batch")
                shared[id(source)] = self.ways.batch.seat(player)
                return shared[id(source)]
            return AutoSeat(self, source, seed, player)

        return seated(source, seed, seat)

    def _say_once(self, name: str, what: str) -> None:
        with self._lock:
            self._say(name, what)

    def _say(self, name: str, what: str) -> None:
        """Report a line, once; the lock is held."""
        line = f"policy {name!r} steps by {what}"
        if line not in self._said:
            self._said.add(line)
            self._report(line)


class AutoSeat:
    """Steps a policy in place until its way is picked; then moves it there, once.

    Args:
        auto: decides.
        source: what makes the policy.
        seed: what it is made with.
        player: the instance; None: it is made where it steps.
    """

    def __init__(self, auto: AutoWrapper, source: PolicySource, seed: int, player: Player | None) -> None:
        self._auto = auto
        self._source = source
        self._seed = seed
        self._player = player
        self._seat: Seat | None = None
        """Where it steps for good."""
        self._measured = auto.ways.serial.seat(_Clocked(player, auto.note)) if player else None

    def submit(self, view: View) -> Pending:
        """Hand the view in, or keep it until its way is picked or its action asked for."""
        step = _AutoStep(self, view)
        if self._seat is not None or not self._auto.keep(self._source.name, step):
            step.hand_in()
        return step

    def step(self, view: View) -> Pending:
        """Hand the view in; the way of the policy is picked."""
        if self._seat is None:
            self._seat = self._moved(self._auto.pick_of(self._source.name) or "serial")
        return self._seat.submit(view)

    def close(self) -> None:
        """Close the seat that it moved to."""
        if self._seat is not None:
            self._seat.close()

    def measure(self, step: _AutoStep) -> int | None:
        """Do a step in place and note what it costs; None where its way was picked meanwhile."""
        with self._auto.measuring:
            if self._measured is None or not step.claim():
                return None
            watch = Stopwatch()
            try:
                return self._measured.submit(step.view).result()
            except PolicyTimeoutError:
                self._seat = self._measured  # the step may be under way still, so the instance cannot move
                self._auto.note(self._source.name, watch.cost())  # all that is known: its caller waited
                raise

    def bring_back(self, why: WorkerLoadError) -> None:
        """Step the policy here after all: the process could not unpickle it, and has changed nothing."""
        self._auto.fall_back(self._source.name, why)
        self._seat = self._in(self._auto.ways.serial)

    def _moved(self, pick: Pick) -> Seat:
        ways = self._auto.ways
        if pick == "process":
            try:
                return ways.process.seat(self._source, self._seed, self._player)
            except WrapperError as error:
                self._auto.fall_back(self._source.name, error)
        return self._in(ways.thread if pick == "thread" else ways.serial)

    def _in(self, way: SerialWrapper | ThreadWrapper) -> Seat:
        """A seat in this process for the instance, which is made if there is none yet."""
        return way.seat(self._player) if self._player else seated(self._source, self._seed, way.seat)


class _AutoStep:
    """A step of a policy whose way may still be open: it is measured in place, or handed in, but not both."""

    def __init__(self, seat: AutoSeat, view: View) -> None:
        self.view = view
        self._seat = seat
        self._claimed = threading.Lock()
        self._handed_in = threading.Event()
        self._pending: Pending | None = None
        self._error: Exception | None = None

    def claim(self) -> bool:
        """Whether the caller is the one to do it."""
        return self._claimed.acquire(blocking=False)

    def hand_in(self) -> None:
        """Hand it in where the policy steps for good, unless it is being measured."""
        if not self.claim():
            return
        try:
            self._pending = self._seat.step(self.view)
        except Exception as error:  # noqa: BLE001 - whoever waits for this step is told, not who picked the way
            self._error = error
        self._handed_in.set()

    def result(self) -> int:
        """The action; raises what stands in its place."""
        if not self._handed_in.is_set():
            measured = self._seat.measure(self)
            if measured is not None:
                return measured
        self._handed_in.wait()
        if self._error is not None or self._pending is None:
            raise self._error or RuntimeError("a step was handed in twice")
        try:
            return self._pending.result()
        except WorkerLoadError as error:
            self._seat.bring_back(error)
        return self._seat.step(self.view).result()


class _Clocked:
    """A policy whose steps are timed."""

    def __init__(self, player: Player, note: Callable[[str, Cost], None]) -> None:
        self.name = player.name
        self._player = player
        self._note = note

    def step(self, view: View) -> int:
        watch = Stopwatch()
        try:
            return self._player.step(view)
        finally:  # steps that fail cost time, too
            self._note(self.name, watch.cost())
