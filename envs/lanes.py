"""Any Gymnasium environments whose step waits, each in a lane of its own: a vector environment of threads.

A lane is an environment and a thread. The vector environment keeps Gymnasium's whole contract, and beside
it the lanes can be stepped one by one: `send` starts steps in some lanes, `recv` gives what has arrived.
Threads take turns in Python; they help where a step waits for a server, a disk or a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate
from numpy.typing import NDArray

from envs.lane_arguments import Options, action_rows, reset_lanes, seed_list
from envs.lane_calls import RESET, SEND
from envs.lane_envs import LaneEnvs
from envs.lane_threads import Job

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


class LaneVectorEnv(LaneEnvs):
    """A vector of environments, each stepped by a thread of its own.

    The environments are made by the caller's thread; from then on each one is used by its lane's alone.
    One thread at a time may use the vector environment. An error of an environment is raised to the caller
    with a note that names the lane. While a call is pending, all but `reset` raise AlreadyPendingCallError.
    After Ctrl-C inside `reset`, `step` or `call` the next call waits for what is under way and forgets it;
    inside others all their lanes have begun, or given, or none: `pending` tells.

    Args:
        env_fns: N functions that make an environment each; nothing is pickled.
        copy: whether `reset` and `step` return copies of the observations.
        observation_mode: `same`: equal observation spaces; `different`: the bounds may differ; or the pair
            (batched space, single space).
        autoreset_mode: what happens with a lane whose episode ends.
        threads: who steps; by default one thread a lane.

    Raises:
        ValueError: no environment, the same one in two lanes, or an unknown mode.
        RuntimeError: the environments' spaces do not fit together.
    """

    @property
    def pending(self) -> tuple[int, ...]:
        """The lanes whose result nobody has received, in order."""
        return tuple(sorted(self._calls.pending))

    def drop(self) -> None:
        """Wait for what is pending, and forget what came of it."""
        self._check_open()
        self._calls.drop()

    def check_step(self, lane: int, action: Any) -> None:  # noqa: ANN401 - the environment's action
        """Raise if the lane cannot take this step; called before any lane starts.

        Raises:
            gymnasium.error.ResetNeeded: the lane's episode is over, and nothing resets it.
        """
        del action
        if self._over[lane] and self.autoreset_mode == AutoresetMode.DISABLED:
            raise ResetNeeded(f"the episode of lane {lane} is over: reset it with options['reset_mask']")

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
            TypeError: a mask that is no bool array.
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
            self.step_async(actions)
            return self.step_wait()

    def step_async(self, actions: Any) -> None:  # noqa: ANN401 - a batch of the action space
        """Start what `step` does, for `step_wait` to give; raises what it raises about its arguments."""
        self._check_open()
        chosen = self._checked(actions, range(self.num_envs))
        self._calls.check("step")
        self._calls.start("step", self._step_jobs(chosen))

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
            ValueError: not one action per lane, a lane twice, or one that is none.
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
            self.check_step(lane, action)
        return chosen

    def _batch(self, observations: Iterable[Any], out: Any) -> Any:  # noqa: ANN401 - of the observation space
        return concatenate(self.single_observation_space, observations, out)

    def _show(self) -> Any:  # noqa: ANN401 - of the observation space
        """The last observation of every lane."""
        self._observations = self._batch(self._last, self._observations)
        return deepcopy(self._observations) if self.copy else self._observations


def _floats(values: Sequence[Any]) -> NDArray[np.float64]:
    return np.array(values, np.float64)


def _bools(values: Sequence[Any]) -> NDArray[np.bool_]:
    return np.array(values, np.bool_)
