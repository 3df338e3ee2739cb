"""The environments of `envs/lanes.py` as such: how they are made, called and closed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from envs.lane_arguments import Env, check_distinct, observation_spaces
from envs.lane_calls import LaneCalls
from envs.lane_threads import Job, LaneThreads, Task

CLOSE_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class LaneEnvs(VectorEnv[Any, Any, NDArray[Any]]):
    """N environments, each used by its lane's thread alone once the caller's has made them.

    What it is made from: see `LaneVectorEnv`.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env]],
        copy: bool = True,  # noqa: FBT001, FBT002 - Gymnasium's signature
        observation_mode: str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        threads: LaneThreads | None = None,
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
        self._closings: list[Task] = []
        self._threads = threads or LaneThreads()
        self._calls = LaneCalls(self._threads)

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
            Task(lane, partial(_close, env, lane)) for lane, env in enumerate(self.envs)
        ]
        late = self._threads.finish(self._closings, 0 if terminate else timeout)
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
    """Close the environments if they come to nothing."""
    try:
        yield
    except BaseException:
        for lane, env in enumerate(envs):
            with suppress(Exception):  # it is logged, and the first error is the one to tell of
                _close(env, lane)
        raise
