"""Any Gymnasium environments whose step waits, each in a lane of its own: a vector environment of threads.

A lane is an environment and a thread. The vector environment keeps Gymnasium's whole contract, and beside
it the lanes can be stepped one by one: `send` starts steps in some lanes, `recv` gives what has arrived.
Threads take turns in Python; they help where a step waits for a server, a disk or a device.

From top to bottom: arguments that are read and checked; the calls under way and their results (`LaneCalls`),
which the workers of the lanes post; the threads that are these workers (`LaneThreads`); and the vector
environment itself (`LaneVectorEnv`).

The caller's thread may be interrupted anywhere. So handing a task out again does no harm, what is posted is
only a hint at which tasks to look at, and what is under way is one value that is replaced whole: wherever
Ctrl-C tears the caller away, a call has begun in all its lanes or in none, and results are there or taken.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from multiprocessing import TimeoutError as ProcessTimeoutError
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    iterate,
)
from numpy.typing import NDArray

from ollama_utils.plans import stop_at_exit
from records.interrupt import raise_if_interrupted

Env = gymnasium.Env[Any, Any]
Space = gymnasium.Space[Any]
Options = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
"""Reset options: the same for every lane, or a list with those of each lane."""

log = logging.getLogger(__name__)


def check_distinct(envs: Sequence[Env]) -> None:
    """Check that no two lanes have the same environment, under whatever wrappers.

    Raises:
        ValueError: two have; their threads would step it at the same time.
    """
    lane_of: dict[int, int] = {}
    for lane, env in enumerate(envs):
        other = lane_of.setdefault(id(env.unwrapped), lane)
        if other != lane:
            raise ValueError(
                f"lanes {other} and {lane} have the same environment object, {env.unwrapped!r}; expected one "
                "of its own in each lane: make a new environment at every call"
            )


def observation_spaces(envs: Sequence[Env], mode: str | tuple[Space, Space]) -> tuple[Space, Space]:
    """The single and the batched observation space, once the environments' spaces have been compared.

    Raises:
        ValueError: an unknown mode.
        TypeError: a pair that is not of spaces.
        RuntimeError: an environment has another action space than the first, or an observation space that
            the mode does not allow.
    """
    first = envs[0].observation_space
    batched, single = _pair(mode) if not isinstance(mode, str) else (None, first)
    if batched is None and mode not in {"same", "different"}:
        raise ValueError(
            f"observation_mode is {mode!r}; expected 'same', 'different' or the pair (batched space, single)"
        )
    for lane, env in enumerate(envs):
        space = env.observation_space
        if not (space == single if mode == "same" else is_space_dtype_shape_equiv(space, single)):
            raise RuntimeError(
                f"lane {lane} has the observation space {space}, not {single}; "
                "observation_mode='different' allows other bounds, and nothing another shape or dtype"
            )
        if env.action_space != envs[0].action_space:
            raise RuntimeError(
                f"lane {lane} has the action space {env.action_space}, not lane 0's {envs[0].action_space}"
            )
    if mode == "same":
        return single, batch_space(single, len(envs))
    return single, batched or batch_differing_spaces([env.observation_space for env in envs])


def _pair(mode: Any) -> tuple[Space, Space]:  # noqa: ANN401 - checked here
    if not (
        isinstance(mode, tuple) and [isinstance(space, gymnasium.Space) for space in mode] == [True, True]
    ):
        raise TypeError(
            f"observation_mode is {mode!r}; expected 'same', 'different' or two spaces, (batched, single)"
        )
    batched, single = mode
    return batched, single


def seed_list(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """A seed a lane: none at all, seed + i, or those of the list.

    Raises:
        ValueError: a list of another length.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"expected {num_envs} seeds, one per lane, got {len(seed)}")
    return [None if each is None else int(each) for each in seed]


def reset_lanes(options: Options, num_envs: int) -> tuple[list[int], list[dict[str, Any] | None]]:
    """The lanes that `reset_mask` names (all without one), and the other options of each of the N lanes.

    `options` stays as it is; every lane has a dict of its own.

    Raises:
        TypeError: the mask is not a bool array.
        ValueError: it has another shape, or is False everywhere; a list of another length.
    """
    everywhere = list(range(num_envs))
    if options is None:
        return everywhere, [None] * num_envs
    if not isinstance(options, Mapping):
        if len(options) != num_envs:
            raise ValueError(f"expected {num_envs} reset options, one per lane, got {len(options)}")
        return everywhere, [None if each is None else dict(each) for each in options]
    if "reset_mask" not in options:
        return everywhere, [dict(options) for _ in everywhere]
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] must be a bool array of shape ({num_envs},), got {mask!r}")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] must have shape ({num_envs},), got {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] is False everywhere; expected at least one lane to reset")
    rest = {name: value for name, value in options.items() if name != "reset_mask"}
    return np.flatnonzero(mask).tolist(), [dict(rest) for _ in everywhere]


def action_rows(space: Space, actions: NDArray[Any] | Any, count: int) -> list[Any]:  # noqa: ANN401 - a batch
    """The single actions of a batch.

    Raises:
        TypeError: not a sequence.
        ValueError: not `count` of them.
    """
    try:
        rows = list(iterate(space, actions))
    except TypeError as error:
        raise TypeError(f"expected a sequence of {count} actions, got {actions!r}") from error
    if len(rows) != count:
        raise ValueError(f"expected {count} actions, one per lane, got {len(rows)}")
    return rows


Job = Callable[[], Any] | Generator[Any, Any, Any]
"""What a lane is to do: a function, or a plan (`envs/batched.py`)."""


class LaneTask:
    """A lane's job, and its value or error once it is done and posted."""

    __slots__ = ("_job", "_post", "error", "is_handed_out", "lane", "value")

    def __init__(self, lane: int, job: Job, post: Callable[[LaneTask], None]) -> None:
        self.lane = lane
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_handed_out = False
        self._job: Job | None = job
        self._post = post

    @property
    def is_plan(self) -> bool:
        """Whether the job is a plan that was not begun yet."""
        return isinstance(self._job, Generator)

    def run(self, caught: type[BaseException] = BaseException) -> None:
        """Do the job, a function, unless it was begun before.

        Args:
            caught: the errors that are kept for the caller; others are raised here, and the job can be begun
                again.
        """
        job, self._job = self._job, None  # it holds the environment, which a result must not keep alive
        if job is None:
            return
        try:
            self.value = job()  # type: ignore[operator] # a plan is played, not run
        except caught as error:
            self.error = error
        except BaseException:
            self._job = job
            raise
        self._post(self)

    def play(self, caught: type[BaseException] = BaseException) -> Generator[Any, Any, None]:
        """The job as a plan, over at once if it was begun before; see `run`."""
        job, self._job = self._job, None
        if job is None:
            return
        try:
            self.value = yield from job  # type: ignore[misc] # a function is run, not played
        except GeneratorExit:  # the runner was stopped
            raise
        except caught as error:
            self.error = error
        self._post(self)


class LaneWorkers(Protocol):
    """What does the jobs of lanes: a thread each, or the runner of plans."""

    def prepare(self, tasks: Iterable[LaneTask]) -> None:
        """Do all that can fail, and all that is done on this thread, before the tasks are under way."""
        ...

    def start(self, tasks: Iterable[LaneTask]) -> None:
        """Have those tasks done that were not handed out yet; called again where Ctrl-C came between."""
        ...

    def finish(self, closings: Sequence[LaneTask], timeout_s: float | None) -> list[int]:
        """Do the last task of each lane, once it is done with the one under way, and end.

        Args:
            closings: a task a lane.
            timeout_s: how long to wait for the lanes, all together; None: as long as it takes.

        Returns:
            The lanes that were not done by then. They end when they are.
        """
        ...


LOOK_UP_S = 0.2
"""Whoever waits looks up as often: Python misses a Ctrl-C that comes just as a wait begins."""
RESET = "reset"
SEND = "send"
INTERRUPTED = "interrupted call"
"""A call that the caller was torn from, as by Ctrl-C: the next one waits for it and forgets it."""


class LanesTimeoutError(TimeoutError, ProcessTimeoutError):
    """Python's TimeoutError, and that of `multiprocessing`, which Gymnasium's AsyncVectorEnv raises."""


class _UnderWay(NamedTuple):
    """The call under way; without tasks there is none."""

    name: str = ""
    tasks: Mapping[int, LaneTask] = {}
    """By lane, those whose result has not been taken."""


class LaneCalls:
    """The call under way, and the lanes whose result has not been taken.

    A call of all lanes (`reset`, `step`, `call`) begins and ends whole; `send` begins steps lane by lane.
    Results stay until they are taken, so that a timeout or an error loses none.
    """

    def __init__(self, workers: LaneWorkers) -> None:
        self._workers = workers
        self._under_way = _UnderWay()
        self._posted: list[LaneTask] = []
        self._bell = threading.Lock()
        self._bell.acquire()
        self._wanted = 1

    @property
    def name(self) -> str | None:
        """The call under way."""
        return self._under_way.name if self._under_way.tasks else None

    @property
    def pending(self) -> Collection[int]:
        """The lanes whose result has not been taken."""
        return self._under_way.tasks.keys()

    def check(self, name: str) -> None:
        """Check that a call of all lanes may begin; one that was interrupted is forgotten.

        Raises:
            AlreadyPendingCallError: another is under way.
        """
        if self.name == INTERRUPTED:
            self.drop()
        if self.name is not None:
            raise AlreadyPendingCallError(
                f"`{name}` while `{self.name}` is pending in {len(self.pending)} lanes: end it, or reset",
                self.name,
            )

    def check_lanes(self, lanes: Sequence[int]) -> None:
        """Check that some lanes may begin a step.

        Raises:
            AlreadyPendingCallError: one of them has a result not yet taken, or another call is under way.
        """
        if self.name != SEND:
            self.check(SEND)
        busy = sorted(set(lanes).intersection(self.pending))
        if busy:
            raise AlreadyPendingCallError(f"lanes {busy!r} have a step pending: recv() it first", SEND)

    def start(self, name: str, jobs: Mapping[int, Job]) -> None:
        """Begin a call in some lanes: each does its job. If it raises an Exception, no lane has started."""
        tasks = {lane: self.task(lane, job) for lane, job in jobs.items()}
        self._workers.prepare(tasks.values())
        self._under_way = _UnderWay(name, {**self._under_way.tasks, **tasks})
        self._workers.start(tasks.values())

    def task(self, lane: int, job: Job) -> LaneTask:
        """A task that is posted here."""
        return LaneTask(lane, job, self._post)

    def all_of(self, name: str, timeout_s: float | None) -> list[LaneTask]:
        """The results of all lanes, in their order, once they are there.

        Raises:
            NoAsyncCallError: the call under way is another, or none.
            TimeoutError: they were not there in time.
        """
        if self.name != name:
            raise NoAsyncCallError(f"`{name}_wait` without a call to `{name}_async` before", name)
        return sorted(self._await(len(self.pending), timeout_s), key=lambda task: task.lane)

    def some(self, least: int, timeout_s: float | None) -> list[LaneTask]:
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
        return self._await(least, timeout_s)

    def take(self, tasks: Sequence[LaneTask]) -> None:
        """Note that the caller has the results of these."""
        taken = {task.lane for task in tasks}
        rest = {lane: task for lane, task in self._under_way.tasks.items() if lane not in taken}
        self._under_way = _UnderWay(self._under_way.name, rest)

    def drop(self) -> None:
        """Wait for every result, and forget them and the call."""
        self._workers.start(self._under_way.tasks.values())  # the caller may have been torn from it
        self.wait(len(self.pending))
        self._under_way = _UnderWay()

    def raise_first(self, tasks: Sequence[LaneTask]) -> None:
        """Raise the first error, if there is one, which is taken then; the results of the others stay."""
        for task in tasks:
            if task.error is None:
                continue
            self.take([task])
            note = f"raised in lane {task.lane}"
            if note not in getattr(task.error, "__notes__", ()):
                task.error.add_note(note)
            raise task.error

    def leave_to_recv(self) -> None:
        """Let what is under way be received lane by lane."""
        self._rename(SEND)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A call from its begin to its end: torn from it, the caller may begin another."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._rename(INTERRUPTED)
            raise

    def wait(self, count: int, timeout_s: float | None = None) -> list[LaneTask]:
        """The tasks under way that are done, in the order of their ends, once there are `count`.

        Returns:
            Fewer, if there were not as many after `timeout_s`.
        """
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self._wanted = count
        while len(done := self._done()) < count and (left := until - time.monotonic()) > 0:
            raise_if_interrupted()
            if not self._bell.acquire(timeout=min(left, LOOK_UP_S)):
                self._workers.start(self._under_way.tasks.values())  # the caller may have been torn from it
        return done

    def _rename(self, name: str) -> None:
        self._under_way = _UnderWay(name, self._under_way.tasks)

    def _await(self, count: int, timeout_s: float | None) -> list[LaneTask]:
        done = self.wait(count, timeout_s)
        if len(done) < count:
            raise LanesTimeoutError(
                f"after {timeout_s!r} s {len(done)} of {count} results of `{self.name}` are there; none is "
                "lost: wait again"
            )
        return done

    def _post(self, task: LaneTask) -> None:
        """Note that a task is done, on any thread."""
        self._posted.append(task)
        # The waiting thread first notes how many it wants and then counts, this one first adds and then
        # looks: one of the two sees that there are enough.
        if len(self._posted) >= self._wanted:
            with suppress(RuntimeError):  # it has rung already
                self._bell.release()

    def _done(self) -> list[LaneTask]:
        """The tasks under way that are posted; the others that are posted have been taken."""
        posted, tasks = self._posted[:], self._under_way.tasks
        done = [task for task in posted if tasks.get(task.lane) is task]
        if len(done) < len(posted):
            self._posted[: len(posted)] = done  # in one go: other threads add to the end
        return done


LAST_STEP_S = 5.0
"""How long the end of the interpreter waits for lanes that are under way, all together."""


class LaneThreads:
    """One daemon thread a lane, started with the lane's first task: see `LaneWorkers`.

    When the interpreter ends, lanes end with the step under way, and it waits up to 5 seconds for them: a
    thread that is in native code by then aborts the process. Close environments whose steps take longer.
    """

    def __init__(self) -> None:
        self._threads: dict[int, _LaneThread] = {}
        stop_at_exit(self, LAST_STEP_S)

    def prepare(self, tasks: Iterable[LaneTask]) -> None:
        """Start the threads that are missing."""
        for task in tasks:
            if not self._lives(task.lane):
                self._threads[task.lane] = thread = _LaneThread(task.lane)
                thread.start()

    def start(self, tasks: Iterable[LaneTask]) -> None:
        """Have the lanes do those tasks that were not handed out yet."""
        for task in tasks:
            if not task.is_handed_out:
                self._threads[task.lane].inbox.put(task)
                task.is_handed_out = True

    def finish(self, closings: Sequence[LaneTask], timeout_s: float | None) -> list[int]:
        """Have each lane do its last task, and end its thread; where it has none, this one does it."""
        for task in closings:
            if self._lives(task.lane):
                self._threads[task.lane].inbox.put(task)
            else:
                task.run(Exception)
        self.stop()
        return self.join(timeout_s)

    def stop(self) -> None:
        """Have every thread end when it has nothing more to do."""
        for thread in self._threads.values():
            thread.inbox.put(None)

    def join(self, timeout_s: float | None) -> list[int]:
        """Wait for the threads to end, or for so long; returns the lanes of the others."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads.values():
            while thread.is_alive() and (left := until - time.monotonic()) > 0:
                thread.join(min(left, LOOK_UP_S))
        return [lane for lane, thread in self._threads.items() if thread.is_alive()]

    def _lives(self, lane: int) -> bool:
        return lane in self._threads and self._threads[lane].is_alive()


class _LaneThread(threading.Thread):
    def __init__(self, lane: int) -> None:
        super().__init__(name=f"lane-{lane}", daemon=True)
        self.inbox = SimpleQueue[LaneTask | None]()

    def run(self) -> None:
        while (task := self.inbox.get()) is not None:
            task.run()
            del task  # it holds what the step returned


CLOSE_TIMEOUT_S = 10.0
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]
Batch = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class Arrivals(NamedTuple):
    """The steps that `recv` gives, n of them, in the order in which they arrived."""

    lanes: NDArray[np.int64]
    """Whose steps they are, (n,)."""
    observations: Any
    """(n, ...), a batch of the single observation space."""
    rewards: NDArray[np.float64]
    """(n,)."""
    terminations: NDArray[np.bool_]
    """(n,)."""
    truncations: NDArray[np.bool_]
    """(n,)."""
    infos: list[dict[str, Any]]
    """One for each; in SAME_STEP the reset's, with `final_obs` and `final_info` of the episode that ended."""


class LaneVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """A vector of environments, each stepped by a thread of its own.

    The environments are made by the caller's thread; from then on each one is used by its lane's alone.
    One thread at a time may use the vector environment. An error of an environment is raised to the caller
    with a note that names the lane. While a call is pending, all but `reset` raise AlreadyPendingCallError.
    After Ctrl-C inside `reset`, `step` or `call` the next call waits for what is under way and forgets it;
    inside others all their lanes have begun, or given, or none: see `pending`.

    Args:
        env_fns: N functions that make an environment each; nothing is pickled.
        copy: whether `reset` and `step` return copies of the observations.
        observation_mode: `same`: equal observation spaces; `different`: the bounds may differ; or the pair
            (batched space, single space).
        autoreset_mode: what happens with a lane whose episode ends.
        workers: who does the jobs of the lanes; by default one thread a lane.

    Raises:
        ValueError: no environment, the same one in two lanes, or an unknown mode.
        RuntimeError: the environments' spaces do not fit together.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env]],
        copy: bool = True,  # noqa: FBT001, FBT002 - Gymnasium's signature
        observation_mode: str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        workers: LaneWorkers | None = None,
    ) -> None:
        self.copy = copy
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.envs: list[Any] = []
        if not env_fns:
            raise ValueError("env_fns is empty; expected at least one function that makes an environment")
        self.num_envs = len(env_fns)
        with _closed_on_error(self.envs):
            self.envs.extend(make() for make in env_fns)
            check_distinct(self.envs)
            self.single_observation_space, self.observation_space = observation_spaces(
                self.envs, observation_mode
            )
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.envs[0].render_mode
        self.single_action_space = self.envs[0].action_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._observations: Any = self._empty(self.num_envs)
        self._last: list[Any] = [None] * self.num_envs
        self._over = [False] * self.num_envs
        self._closings: list[LaneTask] = []
        self._workers = workers or LaneThreads()
        self._calls = LaneCalls(self._workers)

    @property
    def pending(self) -> tuple[int, ...]:
        """The lanes whose result has not been received, in order."""
        return tuple(sorted(self._calls.pending))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Options = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every lane; returns (observations, infos).

        Whatever is pending is waited for and dropped.

        Args:
            seed: None, one int (lane i gets seed + i), or a list of N.
            options: `reset_mask`, a bool array (N,), limits the reset to some lanes, and the others show
                their last observation; the rest goes to the environments. Or a list of N dicts, one for each
                environment. One that is given None is reset without `options`.

        Raises:
            ValueError: a list of seeds or of options, or a mask, of the wrong length; an empty mask.
            TypeError: a mask that is not a bool array.
            gymnasium.error.ResetNeeded: a lane that the mask leaves out has never been reset.
            AlreadyPendingCallError: a lane that the mask leaves out is pending.
            Exception: what an environment raised, that of the lowest lane. The other lanes are reset.
        """
        with self._calls.interruptible():
            self._start_reset(seed, options, drop=True)
            return self.reset_wait()

    def reset_async(self, seed: int | Sequence[int | None] | None = None, options: Options = None) -> None:
        """Start what `reset` does, for `reset_wait` to give; raises what it raises about its arguments.

        Raises:
            AlreadyPendingCallError: a call other than `send` is pending.
        """
        self._start_reset(seed, options, drop=self._calls.name == SEND)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for what `reset_async` started; returns what `reset` returns.

        Raises:
            NoAsyncCallError: `reset_async` was not called.
            TimeoutError: more than `timeout` seconds passed; it can be called again.
        """
        self._check_open()
        tasks = self._calls.all_of(RESET, timeout)
        infos: dict[str, Any] = {}
        for task in tasks:
            if task.error is None:
                self._last[task.lane], self._over[task.lane] = task.value[0], False
                infos = self._add_info(infos, task.value[1], task.lane)
        if all(task.error is None for task in tasks):
            shown = self._show()
        self._calls.take(tasks)
        self._calls.raise_first(tasks)
        return shown, infos

    def step(self, actions: Any) -> Batch:  # noqa: ANN401 - a batch of the action space
        """One step in every lane; returns observations, rewards, terminations, truncations, infos.

        Raises:
            ValueError: not one action per lane.
            TypeError: a scalar instead of a sequence.
            gymnasium.error.ResetNeeded: with autoreset disabled, an episode is over; no lane took its step.
            Exception: what an environment raised, that of the lowest lane. The other lanes have taken their
                steps: `recv` gives them, a `reset` drops them.
        """
        with self._calls.interruptible():
            self._calls.start("step", self._row_jobs(actions))
            return self.step_wait()

    def step_async(self, actions: Any) -> None:  # noqa: ANN401 - a batch of the action space
        """Start what `step` does, for `step_wait` to give; raises what it raises about its arguments."""
        self._calls.start("step", self._row_jobs(actions))

    def step_wait(self, timeout: float | None = None) -> Batch:
        """Wait for what `step_async` started; returns what `step` returns.

        Raises:
            NoAsyncCallError: `step_async` was not called.
            TimeoutError: more than `timeout` seconds passed; it can be called again.
        """
        self._check_open()
        tasks = self._calls.all_of("step", timeout)
        if any(task.error is not None for task in tasks):
            self._calls.leave_to_recv()
            self._calls.raise_first(tasks)
        infos: dict[str, Any] = {}
        for task in tasks:
            self._last[task.lane] = task.value[0]
            infos = self._add_info(infos, task.value[4], task.lane)
        _, rewards, terminations, truncations, _ = zip(*(task.value for task in tasks), strict=True)
        shown = self._show()
        self._calls.take(tasks)
        return shown, _floats(rewards), _bools(terminations), _bools(truncations), infos

    def send(self, actions: Any, lanes: Sequence[int] | NDArray[np.integer[Any]]) -> None:  # noqa: ANN401
        """Start a step in some lanes, for `recv` to give; if it raises an Exception, no lane has started.

        Args:
            actions: n actions, as a batch of the action space.
            lanes: n different numbers of lanes.

        Raises:
            ValueError: not one action per lane, a lane twice, or an unknown one.
            AlreadyPendingCallError: a lane has a step pending, or all lanes a call other than `send`.
            gymnasium.error.ResetNeeded: as for `step`.
        """
        self._check_open()
        numbers = [int(lane) for lane in lanes]
        if len(set(numbers)) < len(numbers) or not all(0 <= lane < self.num_envs for lane in numbers):
            raise ValueError(f"lanes is {numbers!r}; expected different ones from 0 to {self.num_envs - 1}")
        chosen = self._checked(actions, numbers)
        if chosen:
            self._calls.check_lanes(numbers)
            self._calls.start(SEND, self._step_jobs(chosen))

    def recv(self, min_lanes: int = 1, timeout_s: float | None = None) -> Arrivals:
        """The steps that have arrived, in their order: at least `min_lanes`, and all that are there.

        Raises:
            ValueError: `min_lanes` is below 1, or above the number of lanes with a step pending.
            NoAsyncCallError: no lane has a step pending.
            TimeoutError: more than `timeout_s` seconds passed; nothing is lost.
            Exception: what a lane's environment raised. What else has arrived is there for the next `recv`.
        """
        self._check_open()
        tasks = self._calls.some(min_lanes, timeout_s)
        self._calls.raise_first(tasks)
        rows = [task.value for task in tasks]
        observations, rewards, terminations, truncations, infos = zip(*rows, strict=True)
        batch = Arrivals(
            np.array([task.lane for task in tasks], np.int64),
            self._batch(observations, self._empty(len(rows))),
            *(_floats(rewards), _bools(terminations), _bools(truncations)),
            list(infos),
        )
        for task, observation in zip(tasks, observations, strict=True):
            self._last[task.lane] = observation
        self._calls.take(tasks)
        return batch

    def drop(self) -> None:
        """Wait for what is pending, and forget what came of it."""
        self._check_open()
        self._calls.drop()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any method
        """Call the method `name` of every environment (or read the attribute), in lane order."""
        with self._calls.interruptible():
            self.call_async(name, *args, **kwargs)
            return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - any method
        """Start what `call` does, for `call_wait` to give."""
        self._start_call({k: partial(_call, env, name, args, kwargs) for k, env in enumerate(self.envs)})

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for what `call_async` started; returns what `call` returns.

        Raises:
            NoAsyncCallError: `call_async` was not called.
            TimeoutError: more than `timeout` seconds passed; it can be called again.
            Exception: what an environment raised, that of the lowest lane.
        """
        self._check_open()
        tasks = self._calls.all_of("call", timeout)
        self._calls.take(tasks)
        self._calls.raise_first(tasks)
        return tuple(task.value for task in tasks)

    def call_in(self, lanes: Sequence[int], name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any method
        """Call the method `name` of some lanes' environments; returns what they return, in lane order."""
        jobs = {lane: partial(_call, self.envs[lane], name, args, kwargs) for lane in sorted(set(lanes))}
        if not jobs:
            return ()
        with self._calls.interruptible():
            self._start_call(jobs)
            return self.call_wait()

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute `name` of every environment, in lane order."""
        return self.call("get_wrapper_attr", name)

    def set_attr(self, name: str, values: Any) -> None:  # noqa: ANN401 - any attribute
        """Set the attribute `name` to one value, or to one per lane (list or tuple).

        Raises:
            ValueError: a list or tuple of the wrong length.
        """
        self._check_open()
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} values of {name!r}, got {len(each)}")
        jobs = {k: partial(env.set_wrapper_attr, name, each[k]) for k, env in enumerate(self.envs)}
        with self._calls.interruptible():
            self._start_call(jobs)
            self.call_wait()

    def render(self) -> tuple[Any, ...] | None:
        """What every environment renders, in lane order."""
        return self.call("render")

    def close_extras(self, timeout: float | None = CLOSE_TIMEOUT_S, terminate: bool = False) -> None:  # noqa: FBT001, FBT002 - Gymnasium's signature
        """Have every lane close its environment and end, once it is done with the step under way.

        Args:
            timeout: how many seconds to wait for that; None: as long as it takes.
            terminate: do not wait at all, and do not warn.

        A lane that is not done by then is named in a warning; no thread can be stopped from outside. It
        closes its environment and ends when its step does. It keeps the process alive for some seconds at
        most: see `LaneThreads`. After Ctrl-C, close again: what is closed stays so.

        Raises:
            Exception: what an environment raised when it was closed, that of the lowest lane; all of them
                are logged, also those of lanes that were not waited for.
        """
        self._closings = self._closings or [
            self._calls.task(lane, partial(_close, env, lane)) for lane, env in enumerate(self.envs)
        ]
        late = self._workers.finish(self._closings, 0 if terminate else timeout)
        self.closed = True
        if self._calls.pending and not terminate:
            gymnasium.logger.warn(f"`{self._calls.name}` was pending when `close` was called; it is lost.")
        if late and not terminate:
            gymnasium.logger.warn(
                f"After {timeout} s lanes {late} are still busy; they close when they are done."
            )
        self._calls.raise_first(self._closings)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override] # as Gymnasium's own two do
        """The seed of each environment's random numbers."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc] # as Gymnasium's own two do
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each environment's random numbers."""
        return self.get_attr("np_random")

    def __del__(self) -> None:
        if not self.closed and hasattr(self, "_calls"):
            self.close(terminate=True)

    def _check_open(self) -> None:
        if self.closed or self._closings:
            raise ClosedEnvironmentError("this environment is closed: make a new one")

    def _start_call(self, jobs: Mapping[int, Job]) -> None:
        self._check_open()
        self._calls.check("call")
        self._calls.start("call", jobs)

    def _empty(self, count: int) -> Any:  # noqa: ANN401 - of the observation space
        return create_empty_array(self.single_observation_space, count, np.zeros)

    def _check_step(self, lane: int, action: Any) -> None:  # noqa: ANN401 - the environment's action
        """Raise if the lane cannot take this step; called before any lane starts.

        Raises:
            gymnasium.error.ResetNeeded: the lane's episode is over, and nothing resets it.
        """
        del action
        if self._over[lane] and self.autoreset_mode == AutoresetMode.DISABLED:
            raise ResetNeeded(f"the episode of lane {lane} is over: reset it with options['reset_mask']")

    def _start_reset(self, seed: int | Sequence[int | None] | None, options: Options, *, drop: bool) -> None:
        self._check_open()
        seeds = seed_list(seed, self.num_envs)
        lanes, rest = reset_lanes(options, self.num_envs)
        left_out = set(range(self.num_envs)).difference(lanes)
        never = sorted(lane for lane in left_out if self._last[lane] is None)
        if never:
            raise ResetNeeded(f"lanes {never} have never been reset; the first reset is of every lane")
        busy = sorted(left_out.intersection(self._calls.pending))
        if busy:
            raise AlreadyPendingCallError(
                f"options['reset_mask'] leaves out lanes {busy}, which are pending: recv() their steps "
                "first, or reset every lane",
                RESET,
            )
        if drop:
            self._calls.drop()
        self._calls.check(RESET)
        resets = {lane: (seeds[lane], rest[lane]) for lane in lanes}
        self._calls.start(RESET, self._reset_jobs(resets))

    def _reset_jobs(self, resets: Mapping[int, tuple[int | None, dict[str, Any] | None]]) -> dict[int, Job]:
        """What each of some lanes does for a reset, by seed and options."""
        jobs: dict[int, Job] = {}
        for lane, (seed, options) in resets.items():
            more = {} if options is None else {"options": options}  # some environments take none
            jobs[lane] = partial(self.envs[lane].reset, seed=seed, **more)
        return jobs

    def _row_jobs(self, actions: Any) -> dict[int, Job]:  # noqa: ANN401 - a batch
        """What every lane does for a step, which can begin now."""
        self._check_open()
        chosen = self._checked(actions, range(self.num_envs))
        self._calls.check("step")
        return self._step_jobs(chosen)

    def _step_jobs(self, actions: Mapping[int, Any]) -> dict[int, Job]:
        """What each of some lanes does for a step."""
        return {lane: partial(self._step, lane, action) for lane, action in actions.items()}

    def _step(self, lane: int, action: Any) -> StepResult:  # noqa: ANN401 - the environment's action
        """A step with what the autoreset mode makes of it, on the lane's thread."""
        env = self.envs[lane]
        if self._over[lane] and self.autoreset_mode == AutoresetMode.NEXT_STEP:
            first, info = env.reset()
            self._over[lane] = False
            return first, 0.0, False, False, info
        observation, reward, terminated, truncated, info = env.step(action)
        over = bool(terminated or truncated)
        if over and self.autoreset_mode == AutoresetMode.SAME_STEP:
            final = {"final_obs": deepcopy(observation), "final_info": info}
            observation, reset_info = env.reset()
            return observation, reward, terminated, truncated, final | reset_info
        self._over[lane] = over
        return observation, reward, terminated, truncated, info

    def _checked(self, actions: Any, lanes: Sequence[int]) -> dict[int, Any]:  # noqa: ANN401 - a batch
        """The action of each lane, all of which can be taken."""
        chosen = dict(zip(lanes, action_rows(self.action_space, actions, len(lanes)), strict=True))
        for lane, action in chosen.items():
            self._check_step(lane, action)
        return chosen

    def _batch(self, observations: Iterable[Any], out: Any) -> Any:  # noqa: ANN401 - of the observation space
        return concatenate(self.single_observation_space, observations, out)

    def _show(self) -> Any:  # noqa: ANN401 - of the observation space
        """The last observation of every lane."""
        self._observations = self._batch(self._last, self._observations)
        return deepcopy(self._observations) if self.copy else self._observations


def _call(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    value = env.get_wrapper_attr(name)
    return value(*args, **kwargs) if callable(value) else value


def _close(env: Env, lane: int) -> None:
    try:
        env.close()
    except Exception:
        log.warning("the environment of lane %d could not be closed", lane, exc_info=True)
        raise


@contextmanager
def _closed_on_error(envs: Sequence[Env]) -> Iterator[None]:
    """Close the environments if an error is raised."""
    try:
        yield
    except BaseException:
        for lane, env in enumerate(envs):
            with suppress(Exception):  # it is logged, and the first error is the one to raise
                _close(env, lane)
        raise


def _floats(values: Sequence[Any]) -> NDArray[np.float64]:
    return np.array(values, np.float64)


def _bools(values: Sequence[Any]) -> NDArray[np.bool_]:
    return np.array(values, np.bool_)
