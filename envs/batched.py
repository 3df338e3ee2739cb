"""N query-mutation environments behind Gymnasium's VectorEnv API, their model calls made together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.episode import Plan
from envs.query_mutation import EnvConfig, Observation, QueryMutationEnv
from envs.resuming import recorded
from envs.schedules import SCHEDULES, Schedule, run_phased, run_plan, run_sequential

T = TypeVar("T")
Observations = NDArray[np.float32]
Batch = tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
Row = tuple[Observation, float, bool, bool, dict[str, Any]]
DEFAULT_MAX_WORKERS = 8


class BatchedQueryMutationEnv(VectorEnv[Observations, NDArray[np.int64], NDArray[Any]]):
    """A vector of `QueryMutationEnv` that are stepped together (autoreset mode SAME_STEP).

    `schedule` says who waits for whom: `sequential` makes one call after another; `phased` makes all
    rewrites, then all questions, then all verdicts, each phase on `max_workers` threads. Both give the
    same results, row by row, as the single environments do.

    Pass ready environments that share their models and parts, or a config with `num_envs` and what
    `QueryMutationEnv` takes by keyword. `close()` leaves the dispatcher and the encoder open: they belong
    to whoever made them.
    """

    def __init__(
        self,
        envs: Sequence[QueryMutationEnv] | EnvConfig,
        num_envs: int | None = None,
        *,
        schedule: Schedule = "phased",
        max_workers: int | None = None,
        **parts: Any,  # noqa: ANN401 - what QueryMutationEnv takes: queries, dispatcher, encoder, scorer
    ) -> None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is {schedule!r}; expected one of {', '.join(SCHEDULES)}")
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, got {max_workers!r}")
        self.envs = _make(envs, num_envs, parts)
        self.schedule: Schedule = schedule
        self.max_workers = max_workers or DEFAULT_MAX_WORKERS
        self.num_envs = len(self.envs)
        self.metadata = {**QueryMutationEnv.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = None
        shape = (self.num_envs, *(self.single_observation_space.shape or ()))
        self._observations: Observations = np.zeros(shape, np.float32)
        self._to_replay: deque[Sequence[Mapping[str, Any]]] = deque()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start an episode in every lane; returns ((N, size) float32, infos).

        Args:
            seed: None, one int (lane i gets seed + i), or a list of N.
            options: `reset_mask`, a bool array (N,), limits the reset to some lanes; the rest goes to the
                environments.

        Raises:
            ValueError: a list of seeds, or a mask, of the wrong length; an empty mask.
            TypeError: a mask that is no bool array.
            OllamaError: a query could not be embedded.
        """
        self._check_open()
        seeds = self._seeds(seed)
        rest = dict(options or {})
        lanes = np.flatnonzero(_mask(rest.pop("reset_mask", None), self.num_envs))
        plans = [self.envs[i].plan_reset(seed=seeds[i], options=rest) for i in lanes]
        infos: dict[str, Any] = {}
        for i, (first, info) in zip(lanes, self._run(plans), strict=True):
            self._observations[i] = first
            infos = self._add_info(infos, info, int(i))
        return self._observations.copy(), infos

    def step(self, actions: NDArray[np.int64]) -> Batch:
        """One step in every lane; returns observations (N, size), rewards, terminations, truncations, infos.

        A lane that is done shows the first observation of its next episode; its last one is in
        `infos["final_obs"]`, and what its last step told in `infos["final_info"]`.

        Raises:
            ValueError: not one action per lane.
            TypeError: a scalar instead of a sequence.
            gymnasium.error.InvalidAction: an action is not in the action space; no lane took its step.
            gymnasium.error.ResetNeeded: a lane has no episode under way; no lane took its step.
            OllamaError: the next query of a lane could not be embedded; which of the others took their
                steps depends on the schedule, and only a reset goes on from there.
        """
        self._check_open()
        chosen = self._actions(actions)
        for env, action in zip(self.envs, chosen, strict=True):
            env.check(action)
        plans = [_lane(env, action) for env, action in zip(self.envs, chosen, strict=True)]
        rewards = np.zeros(self.num_envs, np.float64)
        terminations = np.zeros(self.num_envs, np.bool_)
        truncations = np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for i, row in enumerate(self._replay(plans) if self._to_replay else self._run(plans)):
            self._observations[i], rewards[i], terminations[i], truncations[i], info = row
            infos = self._add_info(infos, info, i)
        return self._observations.copy(), rewards, terminations, truncations, infos

    def state(self) -> list[dict[str, Any]]:
        """All that the lanes are between two steps, as plain data for `restore`.

        Raises:
            gymnasium.error.ResetNeeded: a lane has no episode under way.
        """
        return [env.state() for env in self.envs]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> Observations:
        """Go on where another vector environment of this config was; returns its observations (N, size).

        Raises:
            ValueError: the state is not of as many lanes.
            OllamaError: a query could not be embedded.
        """
        plans = [env.plan_restore(lane) for env, lane in zip(self.envs, state, strict=True)]
        self._observations[:] = self._run(plans)
        return self._observations.copy()

    def replay(self, rows: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        """Let the coming steps go as they went before, without calling a model.

        Args:
            rows: for each step one line of transitions.jsonl a lane; the actions must be those of then.
        """
        self._to_replay.extend(rows)

    def batch_reset(self) -> tuple[Observations, dict[str, Any]]:
        """`reset()` under the name that the batching document gives it."""
        return self.reset()

    def batch_step(self, actions: NDArray[np.int64]) -> Batch:
        """`step(actions)` under the name that the batching document gives it."""
        return self.step(actions)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any method
        """Call the method `name` of every environment (or read the attribute), in lane order."""
        values = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute `name` of every environment, in lane order."""
        return tuple(env.get_wrapper_attr(name) for env in self.envs)

    def set_attr(self, name: str, values: Any) -> None:  # noqa: ANN401 - any attribute
        """Set the attribute `name` to one value, or to one per lane (list or tuple).

        Raises:
            ValueError: a list or tuple of the wrong length.
        """
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} values of {name!r}, got {len(each)}")
        for env, value in zip(self.envs, each, strict=True):
            env.set_wrapper_attr(name, value)

    def close_extras(self, **_kwargs: Any) -> None:  # noqa: ANN401 - Gymnasium's signature
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _run(self, plans: Sequence[Plan[T]]) -> list[T]:
        """Drive the plans by the schedule. The lanes share one answerer: theirs are alike."""
        answer = self.envs[0].answerer.answer
        if self.schedule == "sequential":
            return run_sequential(plans, answer)
        return run_phased(plans, partial(answer, max_workers=self.max_workers))

    def _replay(self, plans: Sequence[Plan[T]]) -> list[T]:
        """Drive the plans by the next recorded row."""
        answer = self.envs[0].answerer.answer
        steps = self._to_replay.popleft()
        return [run_plan(plan, recorded(step, answer)) for plan, step in zip(plans, steps, strict=True)]

    def _actions(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        chosen = np.asarray(actions)
        if chosen.ndim != 1:
            raise TypeError(f"expected a sequence of {self.num_envs} actions, got {actions!r}")
        if len(chosen) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, one per lane, got {len(chosen)}")
        return chosen

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} seeds, one per lane, got {len(seed)}")
        return [None if each is None else int(each) for each in seed]

    def _check_open(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("this environment is closed: make a new one")


def _lane(env: QueryMutationEnv, action: np.int64) -> Plan[Row]:
    """One lane's step and, when it ends the episode, the reset that follows in the same step."""
    t = yield from env.plan_step(action)
    if not (t.terminated or t.truncated):
        return t.observation, t.reward, t.terminated, t.truncated, t.info
    first, info = yield from env.plan_reset()
    final = {"final_obs": t.observation, "final_info": t.info}
    return first, t.reward, t.terminated, t.truncated, info | final


def _mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:  # noqa: ANN401 - checked here
    if mask is None:
        return np.ones(num_envs, np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] must be a bool array of shape ({num_envs},), got {mask!r}")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] must have shape ({num_envs},), got {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] is False everywhere; expected at least one lane to reset")
    return mask


def _make(
    envs: Sequence[QueryMutationEnv] | EnvConfig, num_envs: int | None, parts: dict[str, Any]
) -> list[QueryMutationEnv]:
    if isinstance(envs, EnvConfig):
        if num_envs is None or num_envs < 1:
            raise ValueError(f"num_envs must be at least 1 beside a config, got {num_envs!r}")
        make: Callable[[], QueryMutationEnv] = partial(QueryMutationEnv, envs, **parts)
        return [make() for _ in range(num_envs)]
    if parts:
        raise TypeError(f"{', '.join(parts)}: expected only beside a config, not beside environments")
    made = list(envs)
    if not made or num_envs not in {None, len(made)}:
        raise ValueError(f"expected {num_envs or 'at least 1'} environments, got {len(made)}")
    for lane, env in enumerate(made):
        if env.answerer != made[0].answerer or env.observation_space != made[0].observation_space:
            raise ValueError(
                f"lane {lane} has other models, parts or observations than lane 0; expected environments "
                "that share a dispatcher, an encoder and a scorer: their calls are made together"
            )
    return made
