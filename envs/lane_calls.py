"""What is asked of the lanes of `envs/lanes.py` and has not been given yet: one call at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from envs.lane_threads import Arrival, Job, LaneThreads

RESET = "reset"
SEND = "send"
INTERRUPTED = "interrupted call"
"""A call that the caller was torn from, as by Ctrl-C: the next one waits for it and forgets it."""


class LaneCalls:
    """The call under way, and the lanes whose result nobody has taken.

    A call of all lanes (`reset`, `step`, `call`) is begun and ended whole; `send` begins steps lane by
    lane. Results stay until they are taken, so that a timeout or an error loses none.
    """

    def __init__(self, threads: LaneThreads) -> None:
        self.threads = threads
        self.name: str | None = None
        """The call under way."""
        self.pending: set[int] = set()
        """The lanes whose result nobody has taken."""

    def begin(self, name: str) -> None:
        """Note that a call of all lanes begins; a reset waits for steps that were sent, and drops them.

        Raises:
            AlreadyPendingCallError: another is under way.
        """
        if self.name == INTERRUPTED or (name == RESET and self.name == SEND):
            self.drop()
        if self.name is not None:
            raise AlreadyPendingCallError(
                f"`{name}` while `{self.name}` is pending in {len(self.pending)} lanes: end it, or reset",
                self.name,
            )
        self.name = name

    def begin_in(self, lanes: Sequence[int]) -> None:
        """Note that some lanes begin a step.

        Raises:
            AlreadyPendingCallError: one of them has a result that nobody took, or another call is under way.
        """
        if self.name != SEND:
            self.begin(SEND)
        busy = sorted(self.pending.intersection(lanes))
        if busy:
            raise AlreadyPendingCallError(f"lanes {busy!r} have a step pending: recv() it first", SEND)

    def start(self, jobs: Mapping[int, Job]) -> None:
        """Have each of some lanes do its job."""
        for lane, job in jobs.items():
            self.threads.start(lane, job)
            self.pending.add(lane)

    def post(self, lane: int, value: Any, error: BaseException | None) -> None:  # noqa: ANN401 - any result
        """Add the result of a lane whose job was done elsewhere."""
        self.threads.post(Arrival(lane, value, error))
        self.pending.add(lane)

    def all_of(self, name: str, timeout_s: float | None) -> list[Arrival]:
        """The results of all lanes, in their order, once they are there.

        Raises:
            NoAsyncCallError: the call under way is another, or none.
            TimeoutError: they were not there in time.
        """
        if self.name != name:
            raise NoAsyncCallError(f"`{name}_wait` without a call to `{name}_async` before", name)
        self._await(len(self.pending), timeout_s)
        return sorted(self.threads.arrived, key=lambda arrival: arrival.lane)

    def some(self, least: int, timeout_s: float | None) -> list[Arrival]:
        """The results of sent steps that are there, in the order of arrival, once there are `least`.

        Raises:
            ValueError: there will not be as many.
            NoAsyncCallError: no step was sent.
            TimeoutError: they were not there in time.
        """
        if self.name != SEND:
            raise NoAsyncCallError("recv() with no step pending: send() one first", SEND)
        if not 1 <= least <= len(self.pending):
            raise ValueError(
                f"min_lanes is {least!r}; expected 1 to {len(self.pending)}, the number of lanes with a step "
                "pending"
            )
        self._await(least, timeout_s)
        return self.threads.arrived[:]

    def take(self, arrivals: Sequence[Arrival]) -> None:
        """Note that the caller has these, the first ones to arrive or all."""
        del self.threads.arrived[: len(arrivals)]
        self.pending.difference_update(arrival.lane for arrival in arrivals)
        if not self.pending:
            self.name = None

    def drop(self) -> None:
        """Wait for every result, and forget them and the call."""
        self.threads.settle()
        self.pending.clear()
        self.name = None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A call from its begin to its end: torn from it, the caller may begin another."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.name = INTERRUPTED  # which lanes have begun is not sure
            raise

    def fail(self, arrival: Arrival) -> NoReturn:
        """Raise the error of a lane; the results of the others stay."""
        arrived = self.threads.arrived
        if arrival in arrived:
            arrived.remove(arrival)
            self.pending.discard(arrival.lane)
        if not self.pending:
            self.name = None
        error = arrival.error or RuntimeError("no error")
        error.add_note(f"raised in lane {arrival.lane}")
        raise error

    def _await(self, count: int, timeout_s: float | None) -> None:
        if not self.threads.wait(count, timeout_s):
            raise TimeoutError(
                f"after {timeout_s!r} s {len(self.threads.arrived)} of {count} results of `{self.name}` are "
                "there; none is lost: wait again"
            )
