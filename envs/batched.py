"""N query-mutation environments behind Gymnasium's VectorEnv API, their calls made together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from envs.episode import Transition
from envs.models import Vector
from envs.query_mutation import QueryMutationEnv, reset_together, step_envs

Flags = NDArray[np.bool_]
VectorStep = tuple[Vector, NDArray[np.float64], Flags, Flags, dict[str, Any]]


class BatchedQueryMutationEnv(VectorEnv[Vector, NDArray[np.int64], NDArray[np.generic]]):
    """A vector of `QueryMutationEnv`, in which one stage of a step is played for all of them.

    All queries are reworded, then all questions asked, then all replies scored, at most
    `max_workers` calls at once. What comes of it is what the single environments give, row by row.
    Autoreset mode: SAME_STEP.

    Args:
        envs: environments that share their models.
        max_workers: the most calls at once.

    Raises:
        ValueError: a number is less than 1, or the environments do not share their models.
    """

    def __init__(self, envs: Sequence[QueryMutationEnv], *, max_workers: int = 8) -> None:
        self.envs, count = list(envs), len(envs)
        if not self.envs or max_workers < 1:
            expected = "expected at least one environment and one worker"
            raise ValueError(f"{expected}, got {count} and {max_workers!r}")
        first = self.envs[0]
        for lane, env in enumerate(self.envs):
            if env.models != first.models or env.observation_space != first.observation_space:
                raise ValueError(
                    f"lane {lane} has other models or observations than lane 0; expected one "
                    "dispatcher, encoder and scorer for all"
                )
        self.max_workers, self.num_envs = max_workers, count
        self.metadata = first.metadata | {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, count)
        self.action_space = batch_space(first.action_space, count)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Vector, dict[str, Any]]:
        """Start an episode in every lane; lane k's seed is `seed + k`, or the k-th of a list.

        Raises:
            OllamaError: a query could not be embedded.
            ValueError: an unknown option, or not as many seeds as lanes.
        """
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + lane for lane in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} seeds, one a lane, got {len(seed)}")
        infos: dict[str, Any] = {}
        begun = reset_together(self.envs, seed, options)
        for lane, (_, info) in enumerate(begun):
            infos = self._add_info(infos, info, lane)
        return np.stack([observation for observation, _ in begun]), infos

    def step(self, actions: NDArray[np.int64]) -> VectorStep:
        """One step of every lane; one whose episode ends shows the first observation of the next.

        Returns:
            Observations (N, size), rewards (N,), terminations (N,), truncations (N,), infos; of an
            episode that ended `final_obs` and `final_info`.

        Raises:
            gymnasium.error.InvalidAction, gymnasium.error.ResetNeeded: no lane took its step.
            OllamaError: the next query of a lane could not be embedded; reset all.
        """
        steps = self.step_envs(list(iterate(self.action_space, actions)))
        infos: dict[str, Any] = {}
        for lane, step in enumerate(steps):
            last = {"final_obs": step.observation, "final_info": step.info}
            infos = self._add_info(infos, last if step.is_over else step.info, lane)
        observations = np.stack([step.observation for step in steps])
        over = [lane for lane, step in enumerate(steps) if step.is_over]
        begun = reset_together([self.envs[lane] for lane in over], [None] * len(over))
        for lane, (observation, info) in zip(over, begun, strict=True):
            observations[lane] = observation
            infos = self._add_info(infos, info, lane)
        return (
            observations,
            np.array([step.reward for step in steps], np.float64),
            np.array([step.terminated for step in steps], np.bool_),
            np.array([step.truncated for step in steps], np.bool_),
            infos,
        )

    def step_envs(self, actions: Sequence[int | np.int64]) -> list[Transition]:
        """One step of every lane as its environment gives it, without a reset. Raises as `step`."""
        if len(actions) != self.num_envs:
            raise gymnasium.error.InvalidAction(
                f"expected {self.num_envs} actions, one a lane, got {len(actions)}"
            )
        return step_envs(self.envs, actions, self.max_workers)

    batch_reset, batch_step = reset, step
    """What an earlier system called them, see docs/names.md."""
