"""Steps the policies of agents that play side by side, each agent on a thread of its own.

    serial    the agents of an episode one after another
    thread    each on its agent's thread: for policies that wait, or that release Python's lock
    process   policies live in as many processes as jobs or CPUs, whichever is less
    batch     one call of `step_batch` for the agents of an episode that wait for one
    torch     one forward pass, of 16 rows a block, for the agents of all episodes that wait for one
    auto      torch where a policy has a network, batch where it has `step_batch`, else thread

Each gives the same actions, and an error is that of the agent whose policy it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from evaluation.errors import StepperError, timeout_error
from evaluation.instance import Instance, Row, block_scores, checked
from evaluation.policies import PolicySource, View
from ollama_utils.threads import start_thread
from records.errors import describe

if TYPE_CHECKING:
    import torch

    from evaluation.processes import Processes

StepperName = Literal["serial", "auto", "thread", "process", "batch", "torch"]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class AgentPolicy:
    """The policy of one agent in one episode. One that was late is not to be stepped again."""

    step: Callable[[View], int]
    """The action in a view.

    Raises:
        PolicyError: the step overran its deadline, the action is no mutator's number, the policy
            exited, its process died, or it raised in its process.
        StepperError: the evaluation ended meanwhile.
        Exception: whatever the policy raises.
    """
    close: Callable[[], None] = lambda: None
    """The episode is over: drop the policy, waiting for nothing."""


class PolicyStepper:
    """Steps policies in one way. One for all threads of an evaluation.

    Args:
        name: the way.
        jobs: how many agents play at once.
        action_timeout_ms: milliseconds that a step may take, counted from when the policy begins
            with it. Making an instance does not count. None: no limit.
    """

    def __init__(
        self, name: StepperName, *, jobs: int, action_timeout_ms: float | None = None
    ) -> None:
        self.name = name
        self._within = partial(_within, action_timeout_ms)
        self._processes: Processes | None = None
        if name == "process":
            from evaluation.processes import Processes

            self._processes = Processes(jobs, action_timeout_ms)
        self._ways: dict[int, tuple[PolicySource, StepperName]] = {}
        """By a source's id, which stays its own while the source is here."""
        self._shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        """What several agents use, for as long as one of them does."""
        self._lock = threading.Lock()

    def check(self, source: PolicySource) -> None:
        """Make an instance of a policy, to see whether it can be made and stepped in this way.

        Raises:
            StepperError: it cannot.
        """
        try:
            instance = Instance(source, 0)
        except Exception as error:
            raise StepperError(
                f"policy {source.name!r} cannot be made: {describe(error)}; "
                "change its options or its __init__"
            ) from error
        if self._processes is not None:
            self._processes.begin(source, 0).close()
        self._ways[id(source)] = source, self._way_of(instance)

    def begin(
        self, source: PolicySource, seed: int, *, group: Hashable, group_seed: int
    ) -> AgentPolicy:
        """The policy of one agent in one episode.

        Args:
            source: makes it; the same object for the same policy.
            seed: the agent's chance, at least 0.
            group: the same for all agents of an episode.
            group_seed: the first agent's seed, with which an instance is made that serves several.

        Raises:
            StepperError: it cannot be stepped in this way.
            Exception: whatever making it raises.
        """
        if self._processes is not None:
            resident = self._processes.begin(source, seed)
            return AgentPolicy(resident.step, resident.close)
        if id(source) not in self._ways:
            self.check(source)
        way = self._ways[id(source)][1]
        if way == "batch":
            return AgentPolicy(self._batched(source, group, group_seed))
        instance = Instance(source, seed)
        if way == "torch":
            return AgentPolicy(self._networked(instance))
        turn = self._share(group, threading.Lock) if way == "serial" else threading.Lock()

        def step(view: View) -> int:
            with turn:
                return self._within(source.name, instance.step, view)

        return AgentPolicy(step)

    def close(self) -> None:
        """End the processes, whatever they are at."""
        if self._processes is not None:
            self._processes.close()

    def _way_of(self, instance: Instance) -> StepperName:
        if self.name in {"serial", "thread", "process"}:
            return self.name
        if instance.network is not None:
            return "torch"
        if self.name != "torch" and callable(getattr(instance.policy, "step_batch", None)):
            return "batch"
        if self.name == "auto":
            return "thread"
        missing = "step_batch" if self.name == "batch" else "torch network"
        raise StepperError(
            f"policy {instance.name!r} has no {missing}: "
            f"--policy-wrapper {self.name} cannot serve it"
        )

    def _networked(self, instance: Instance) -> Callable[[View], int]:
        network = cast("torch.nn.Module", instance.network)

        def make() -> _Gathered[Row, NDArray[np.float32]]:
            return _Gathered(partial(self._within, instance.name, partial(block_scores, network)))

        passes = self._share(id(network), make)

        def step(view: View) -> int:
            scores = passes.ask((instance.place, view.observation))
            choose = instance.step if scores is None else partial(instance.choose, scores)
            return self._within(instance.name, choose, view)

        return step

    def _batched(self, source: PolicySource, group: Hashable, seed: int) -> Callable[[View], int]:
        """Once a call failed, each agent has an instance of its own, which sees all that it saw."""

        def make() -> _Gathered[View, object]:
            instance = Instance(source, seed)
            return _Gathered(partial(self._within, source.name, instance.step_batch))

        together = self._share((group, id(source)), make)
        seen: list[View] = []

        def step(view: View) -> int:
            action = together.ask(view)
            if action is None:
                alone = Instance(source, seed)
                for earlier in seen:
                    alone.step_batch([earlier])
                (action,) = self._within(source.name, alone.step_batch, [view])
            seen.append(view)
            return checked(action, source.name, view)

        return step

    def _share(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            found: T | None = self._shared.get(key)
            if found is None:
                found = self._shared[key] = make()
            return found


class _Item(Generic[T, R]):
    """What an agent waits for.

    Args:
        given: what the call is to get of it.
    """

    def __init__(self, given: T) -> None:
        self.given = given
        self.result: R | None = None
        self.is_taken = False
        """Whether a call had it."""
        self.its_turn = threading.Event()
        """Set once a call had it, or its agent is to make the next call."""


class _Gathered(Generic[T, R]):
    """Does together what came in while the call before was under way, until a call fails.

    Args:
        do: is called with items, one call at a time, and returns a result for each.
    """

    def __init__(self, do: Callable[[list[T]], Sequence[R]]) -> None:
        self._do = do
        self._waiting: list[_Item[T, R]] = []
        self._is_busy = False
        """Whether somebody makes a call, or is about to."""
        self._has_failed = False
        self._lock = threading.Lock()

    def ask(self, given: T) -> R | None:
        """The result for an item; None: it is to be done alone, for a call failed."""
        mine = _Item[T, R](given)
        with self._lock:
            self._waiting.append(mine)
            is_busy, self._is_busy = self._is_busy, True
        if is_busy:
            mine.its_turn.wait()
        if not mine.is_taken:
            self._call()
        return mine.result

    def _call(self) -> None:
        """Make the next call, then have whoever waits first make the one after it."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        try:
            if not self._has_failed:
                results = self._do([item.given for item in taken])
                for item, result in zip(taken, results, strict=True):
                    item.result = result
        except Exception:  # noqa: BLE001 - the item whose fault it was raises it again, alone
            self._has_failed = True
        finally:
            for item in taken:
                item.is_taken = True
                item.its_turn.set()
            with self._lock:
                self._is_busy = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].its_turn.set()


def _within(timeout_ms: float | None, name: str, work: Callable[[T], R], given: T) -> R:
    """What a policy's work returns; the thread of work that is late is left alone.

    Raises:
        PolicyError: it is late.
        BaseException: whatever the work raises.
    """
    if timeout_ms is None:
        return work(given)
    result: Future[R] = Future()

    def job() -> None:
        try:
            result.set_result(work(given))
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            result.set_exception(error)

    start_thread(job)
    wait([result], timeout_ms / 1000)
    if not result.done():
        raise timeout_error(name, timeout_ms)
    return result.result()
