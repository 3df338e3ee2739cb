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
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast
from weakref import WeakValueDictionary

from evaluation.instance import Instance, StepperError, block_scores, checked, timeout_error
from evaluation.policies import PolicySource, Step, View
from ollama_utils.threads import submit
from records.errors import describe

if TYPE_CHECKING:
    import torch

    from evaluation.processes import Processes

StepperName = Literal["serial", "auto", "thread", "process", "batch", "torch"]
T = TypeVar("T")
R = TypeVar("R")


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
        self._ways: dict[PolicySource, StepperName] = {}
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
            self._processes.begin(source, 0)
        self._ways[source] = self._way_of(instance)

    def begin(self, source: PolicySource, seed: int, *, group: Hashable, group_seed: int) -> Step:
        """The policy of one agent in one episode, whose chance comes from `seed` (at least 0).

        `group` identifies the episode. An instance that serves all of its agents has `group_seed`,
        the seed of the first.

        Raises:
            StepperError: it cannot be stepped in this way.
            Exception: whatever making it raises.
        """
        if self._processes is not None:
            return self._processes.begin(source, seed)
        if source not in self._ways:
            self.check(source)
        way = self._ways[source]
        if way == "batch":
            return self._batched(source, group, group_seed)
        instance = Instance(source, seed)
        if way == "torch":
            return self._networked(instance)
        turn = self._share(group, threading.Lock) if way == "serial" else threading.Lock()

        def step(view: View) -> int:
            with turn:
                return self._within(source.name, instance.step, view)

        return step

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

    def _networked(self, instance: Instance) -> Step:
        network = cast("torch.nn.Module", instance.network)
        score = partial(self._within, instance.name, partial(block_scores, network))
        passes = self._share(id(network), lambda: _Gathered(score))

        def step(view: View) -> int:
            scores = passes.ask((instance.place, view.observation))
            choose = instance.step if scores is None else partial(instance.choose, scores)
            return self._within(instance.name, choose, view)

        return step

    def _batched(self, source: PolicySource, group: Hashable, seed: int) -> Step:
        """Once a call failed, each agent has an instance of its own, which sees all that it saw."""

        def make() -> _Gathered[View, object]:
            instance = Instance(source, seed)
            return _Gathered(partial(self._within, source.name, instance.step_batch))

        together = self._share((group, source), make)
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


class _Gathered(Generic[T, R]):
    """Does together what came in while the call before was under way, until a call fails."""

    def __init__(self, do: Callable[[list[T]], Sequence[R]]) -> None:
        self._do = do
        self._waiting: list[tuple[T, Future[R | None]]] = []
        self._has_failed = False
        self._turn = threading.Lock()
        """Held during a call; who gets it next takes all that wait."""

    def ask(self, given: T) -> R | None:
        """The result for an item; None: it is to be done alone, for a call failed."""
        mine: Future[R | None] = Future()
        self._waiting.append((given, mine))
        with self._turn:
            if not mine.done():
                self._call()
        return mine.result()

    def _call(self) -> None:
        taken = [self._waiting.pop(0) for _ in range(len(self._waiting))]
        results: Sequence[R | None] = [None] * len(taken)
        try:
            if not self._has_failed:
                results = self._do([item for item, _ in taken])
        except Exception:  # noqa: BLE001 - the item whose fault it was raises it again, alone
            self._has_failed = True
        finally:
            for (_, future), result in zip(taken, results, strict=True):
                future.set_result(result)


def _within(timeout_ms: float | None, name: str, work: Callable[[T], R], given: T) -> R:
    """What a policy's work returns; the thread of work that is late is left alone."""
    if timeout_ms is None:
        return work(given)
    result = submit(partial(work, given))
    wait([result], timeout_ms / 1000)
    if not result.done():
        raise timeout_error(name, timeout_ms)
    return result.result()
