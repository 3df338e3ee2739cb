"""The environments of `envs/lanes.py` as such: how they are made, called and closed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from envs.lane_arguments import Env, observation_spaces
from envs.lane_calls import LaneCalls
from envs.lane_threads import Arrival, LaneThreads

CLOSE_TIMEOUT_S = 10.0


class LaneEnvs(VectorEnv[Any, Any, NDArray[Any]]):
    """N environments, each used by its lane's thread alone once the caller's has made them.

    Args:
        env_fns: N functions that make an environment each; nothing is pickled.
        copy: whether `reset` and `step` return copies of the observations.
        observation_mode: `same`: equal observation spaces; `different`: the bounds may differ; or the pair
            (batched space, single space).
        autoreset_mode: what happens with a lane whose episode ends.

    Raises:
        ValueError: no environment, or an unknown mode.
        RuntimeError: the environments' spaces do not fit together.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env]],
        copy: bool = True,  # noqa: FBT001, FBT002 - Gymnasium's signature
        observation_mode: str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        self.copy = copy
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.envs: list[Any] = [make() for make in env_fns]
        if not self.envs:
            raise ValueError("env_fns is empty; expected at least one function that makes an environment")
        self.num_envs = len(self.envs)
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.envs[0].render_mode
        self.single_observation_space, self.observation_space = observation_spaces(
            self.envs, observation_mode
        )
        self.single_action_space = self.envs[0].action_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._observations: Any = self._empty(self.num_envs)
        self._last: list[Any] = [None] * self.num_envs
        self._over = [False] * self.num_envs
        self._calls = LaneCalls(LaneThreads())

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any method
        """Call the method `name` of every environment (or read the attribute), in lane order."""
        with self._calls.interruptible():
            self.call_async(name, *args, **kwargs)
            return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - any method
        """Start what `call` does, for `call_wait` to give."""
        self._check_open()
        self._calls.begin("call")
        self._calls.start({k: partial(_call, env, name, args, kwargs) for k, env in enumerate(self.envs)})

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for what `call_async` started; returns what `call` returns.

        Raises:
            NoAsyncCallError: `call_async` was not called.
            TimeoutError: more than `timeout` seconds passed; it can be called again.
            Exception: what an environment raised, that of the lowest lane.
        """
        self._check_open()
        arrivals = self._calls.all_of("call", timeout)
        self._calls.take(arrivals)
        self._raise_first(arrivals)
        return tuple(arrival.value for arrival in arrivals)

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
            self._calls.begin("call")
            self._calls.start(jobs)
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
        closes its environment and ends when its step does, and never keeps the process alive.

        Raises:
            Exception: what an environment raised when it was closed, that of the lowest lane.
        """
        if self._calls.pending and not terminate:
            gymnasium.logger.warn(
                f"Calling `close` while `{self._calls.name}` is pending: its results are lost."
            )
        self.closed = True
        errors: list[Arrival] = []
        jobs = [partial(_close, env, lane, errors) for lane, env in enumerate(self.envs)]
        late = self._calls.threads.finish(jobs, 0 if terminate else timeout)
        if late and not terminate:
            gymnasium.logger.warn(
                f"After {timeout} s lanes {late} are still busy; they close when they are done."
            )
        self._raise_first(sorted(errors, key=lambda arrival: arrival.lane))

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
        if self.closed:
            raise ClosedEnvironmentError("this environment is closed: make a new one")

    def _raise_first(self, arrivals: Iterable[Arrival]) -> None:
        """Raise the first error, if there is one."""
        for arrival in arrivals:
            if arrival.error is not None:
                self._calls.fail(arrival)

    def _empty(self, count: int) -> Any:  # noqa: ANN401 - of the observation space
        return create_empty_array(self.single_observation_space, count, np.zeros)


def _call(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    value = env.get_wrapper_attr(name)
    return value(*args, **kwargs) if callable(value) else value


def _close(env: Env, lane: int, errors: list[Arrival]) -> None:
    try:
        env.close()
    except Exception as error:  # noqa: BLE001 - whoever closes the lanes raises it
        errors.append(Arrival(lane, None, error))
