"""Plans side by side under one cap: whichever slot is free takes the first thing that anybody waits for.

A plan is a generator, as an episode's step is: it yields a batch of items, is sent what came of each, and
returns its result. It knows nothing of threads and of other plans, so what it returns depends on its own
items alone, never on what was done when. The first plan's items come first; the next plan is opened only
when a place would be idle. So no place idles while there is an item, and few plans are half done at a time.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from ollama_utils.parallel import map_parallel

Item = TypeVar("Item")
Value = TypeVar("Value")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Failed:
    """Stands where an item's value would: it raised."""

    error: Exception


Plan = Generator[Sequence[Item], Sequence[Value | Failed], Result]
"""Yields batches of items (an empty one is answered at once), is sent their values in order, returns."""


def play_plans(
    plans: Sequence[Plan[Item, Value, Result]],
    do: Callable[[Item], Value],
    max_in_flight: int,
    tick: Callable[[], None] = lambda: None,
) -> list[Result]:
    """What each plan returns, in the order of the plans.

    Args:
        plans: the first one's items are done first.
        do: does one item, on any thread; an exception spoils that item alone.
        max_in_flight: the most items that are done at once.
        tick: called after each item, on any thread, one at a time.

    Raises:
        ValueError: `max_in_flight` is less than 1.
        Exception: whatever a plan itself raises; nothing is begun after it.
    """
    if max_in_flight < 1:
        raise ValueError(f"max_in_flight must be at least 1, got {max_in_flight!r}")
    player = _Player(plans, do, tick)
    try:
        map_parallel(lambda _: player.work(), range(max_in_flight))
    finally:
        player.stop()
    if player.failure is not None:
        raise player.failure
    return player.results()


class _Stream(Generic[Item, Value, Result]):
    """One plan under way: its batch, how far that is, and at last its result."""

    def __init__(self, plan: Plan[Item, Value, Result]) -> None:
        self._plan = plan
        self.result: Result | None = None
        self.is_over = False
        self._batch: Sequence[Item] = ()
        self._values: list[Any] = []
        self._begun = 0
        self._ended = 0

    @property
    def has_item(self) -> bool:
        """Whether there is an item that nobody has begun."""
        return not self.is_over and self._begun < len(self._batch)

    def open(self) -> None:
        self._go_on(None)

    def take(self) -> tuple[int, Item]:
        """The next item that nobody has begun, with its place."""
        self._begun += 1
        return self._begun - 1, self._batch[self._begun - 1]

    def put(self, place: int, value: Value | Failed) -> None:
        """What came of an item; the last of a batch lets the plan go on."""
        self._values[place] = value
        self._ended += 1
        if self._ended == len(self._batch):
            self._go_on(self._values)

    def _go_on(self, values: list[Any] | None) -> None:
        try:
            batch = next(self._plan) if values is None else self._plan.send(values)
            while not batch:
                batch = self._plan.send([])
        except StopIteration as end:
            self.result, self.is_over = cast("Result", end.value), True
            return
        self._batch, self._values = batch, [None] * len(batch)
        self._begun = self._ended = 0


class _Player(Generic[Item, Value, Result]):
    """Shared by the threads that do the items."""

    def __init__(
        self,
        plans: Sequence[Plan[Item, Value, Result]],
        do: Callable[[Item], Value],
        tick: Callable[[], None],
    ) -> None:
        self._streams: list[_Stream[Item, Value, Result]] = [_Stream(plan) for plan in plans]
        self._do = do
        self._tick = tick
        self._opened = 0
        self._over = 0
        self._ready: list[int] = []
        """A heap: the numbers of the streams that have an item for whoever is free."""
        self._changed = threading.Condition()
        self._stopped = False
        self.failure: BaseException | None = None

    def work(self) -> None:
        """Do items until none is left, or somebody stopped."""
        while (taken := self._take()) is not None:
            number, place, item = taken
            try:
                value: Value | Failed = self._do(item)
            except Exception as error:  # noqa: BLE001 - it belongs to the item
                value = Failed(error)
            except BaseException:
                self.stop()
                raise
            with self._changed:
                self._put(number, place, value)
                self._guarded(self._tick)
                self._changed.notify_all()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def results(self) -> list[Result]:
        return [cast("Result", stream.result) for stream in self._streams]

    def _take(self) -> tuple[int, int, Item] | None:
        """The first stream's next item that nobody has begun, after its stream's number and its place."""
        with self._changed:
            while not self._stopped:
                if self._ready:
                    number = self._ready[0]
                    place, item = self._streams[number].take()
                    if not self._streams[number].has_item:
                        heapq.heappop(self._ready)
                    return number, place, item
                if self._opened < len(self._streams):
                    self._opened += 1
                    self._guarded(self._streams[self._opened - 1].open)
                    self._sort_in(self._opened - 1)
                elif self._over == len(self._streams):
                    return None
                else:
                    self._changed.wait()
            return None

    def _put(self, number: int, place: int, value: Value | Failed) -> None:
        """What came of an item goes to its stream. The lock is held."""
        stream = self._streams[number]
        had_item = stream.has_item
        self._guarded(lambda: stream.put(place, value))
        if not had_item:
            self._sort_in(number)

    def _sort_in(self, number: int) -> None:
        """A stream has new items, or is over, or neither. The lock is held."""
        if self._streams[number].has_item:
            heapq.heappush(self._ready, number)
        self._over += self._streams[number].is_over

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do what is no item's; where it fails, all ends. The lock is held."""
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised by `play_plans`
            self.failure, self._stopped = self.failure or error, True
            self._changed.notify_all()
