"""The bridge from Gymnasium's VectorEnv to Stable-Baselines3's VecEnv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from envs.lanes import LaneVectorEnv

# RecordEpisodeStatistics writes this key beside the reset info, but it is about the episode that ended.
EPISODE_KEY = "episode"
TRUNCATED_KEY = "TimeLimit.truncated"
_ATOMS = frozenset({str, int, float, bool, type(None)})  # nobody can change these: they need no copy


def list_infos(infos: Mapping[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Gymnasium's infos, a dict of arrays with masks `_key`, as one dict per lane.

    Nested dicts become nested dicts, numpy scalars become Python's, and the rest is copied.

    Args:
        infos: for each key `num_envs` values (or a dict of such) and, under `_key`, a bool mask (num_envs,)
            of the lanes that have it; without a mask every lane has it.
        num_envs: how many lanes there are.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        column = list_infos(values, num_envs) if isinstance(values, Mapping) else values
        mask = infos.get(f"_{key}", np.ones(num_envs, np.bool_))
        for lane in np.flatnonzero(mask).tolist():
            rows[lane][key] = _plain(column[lane])
    return rows


_StepInfo = tuple[bool, dict[str, Any], dict[str, Any] | None]
"""Whether a lane is done, its step's info, and the info of the reset where there was one."""


class LaneStep(NamedTuple):
    """One lane's step, in SB3's terms."""

    lane: int
    observation: Any
    """What the lane shows now: after an episode's end the next one's first observation."""
    reward: float
    done: bool
    info: dict[str, Any]
    reset_info: dict[str, Any] | None
    """The reset's; None where the episode goes on."""


class GymnasiumVecEnv(VecEnv):
    """Any Gymnasium vector environment with SAME_STEP autoreset, for Stable-Baselines3 algorithms.

    `step` returns observations, rewards (N,) float32, dones (N,) bool and a list of N infos, all of them
    fresh. The info of a lane that is done is the ended episode's, with its last observation under
    `terminal_observation`; the reset's is in `reset_infos`. Every info has `TimeLimit.truncated`.

    Over a `LaneVectorEnv` lanes can also be stepped one by one: `send` and `recv`. A row put together from
    such steps goes through whatever wraps this environment by `deliver` and then `step`.

    Raises:
        TypeError: not a Gymnasium vector environment.
        ValueError: its autoreset mode is not SAME_STEP.
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any]) -> None:
        _check_same_step(vector_env)
        self.vector_env = vector_env
        self.spec = vector_env.spec
        self._actions: NDArray[Any] | None = None
        self._row: tuple[NDArray[Any], Sequence[LaneStep]] | None = None
        super().__init__(
            vector_env.num_envs, vector_env.single_observation_space, vector_env.single_action_space
        )

    def seed_lanes(self, seeds: Sequence[int]) -> None:
        """Seed the next reset lane by lane (`seed` gives lane i its seed + i)."""
        self._seeds = list(seeds)

    def reset(self) -> VecEnvObs:
        """Start an episode in every lane, with the seeds and options set before; returns observations.

        Steps that were sent and never received are dropped.

        Raises:
            ValueError: not one of the options a lane; they differ, and the lanes are not a LaneVectorEnv's.
        """
        self._row = None
        seeds: Any = None if all(seed is None for seed in self._seeds) else list(self._seeds)
        observations, infos = self.vector_env.reset(seed=seeds, options=self._reset_option())
        self.reset_infos = list_infos(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return deepcopy(observations)  # type: ignore[no-any-return] # VectorEnv leaves the type open

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions for `step_wait`: a batch of the action space, or a list of N."""
        self._actions = self._batched(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Step every lane; returns (observations, rewards, dones, infos).

        Raises:
            ValueError: a row was delivered, and the actions are not those that led to it.
        """
        if self._row is not None:
            return self._delivered()
        observations, rewards, terminated, truncated, infos = self.vector_env.step(self._actions)
        rows = list_infos(infos, self.num_envs)
        step_infos = list(map(_step_info, terminated, truncated, rows))
        return self._row_of(deepcopy(observations), rewards, step_infos)

    def send(self, actions: NDArray[Any], lanes: Sequence[int]) -> None:
        """Begin a step in N lanes, all different, with N actions.

        Raises:
            TypeError: the vector environment is not a LaneVectorEnv.
            gymnasium.error.AlreadyPendingCallError: one of them has a step under way.
        """
        self._lanes.send(self._batched(actions), np.asarray(lanes, np.int64))

    def recv(self) -> list[LaneStep]:
        """The steps that ended, in the order of their ends; waits for one of those under way.

        Raises:
            TypeError: the vector environment is not a LaneVectorEnv.
            gymnasium.error.NoAsyncCallError: none is under way.
        """
        came = self._lanes.recv()
        observations = map(deepcopy, iterate(self._lanes.observation_space, came.observations))
        step_infos = map(_step_info, came.terminations, came.truncations, map(_plain, came.infos))
        steps = zip(came.lanes.tolist(), observations, came.rewards.tolist(), step_infos, strict=True)
        return [LaneStep(lane, observation, reward, *rest) for lane, observation, reward, rest in steps]

    def drop(self) -> None:
        """Wait for the steps under way, and forget them.

        Raises:
            TypeError: the vector environment is not a LaneVectorEnv.
        """
        self._row = None
        self._lanes.drop()

    def deliver(self, actions: NDArray[Any], row: Sequence[LaneStep]) -> None:
        """Have the next `step(actions)` return these steps, one a lane in lane order, without taking any."""
        self._row = actions, row

    @property
    def _lanes(self) -> LaneVectorEnv:
        if not isinstance(self.vector_env, LaneVectorEnv):
            raise TypeError(
                f"{self.vector_env} steps all lanes at once; expected an envs.lanes.LaneVectorEnv"
            )
        return self.vector_env

    def _delivered(self) -> VecEnvStepReturn:
        (actions, row), self._row = cast("tuple[NDArray[Any], Sequence[LaneStep]]", self._row), None
        if not np.array_equal(actions, np.asarray(self._actions)):
            raise ValueError(
                f"expected the actions that the lanes took, {actions.tolist()}, got {self._actions!r}: "
                "a wrapper changes actions by whole rows; change them in each environment"
            )
        observations = np.stack([step.observation for step in row])
        return self._row_of(observations, [step.reward for step in row], [step[3:] for step in row])

    def _row_of(
        self, observations: VecEnvObs, rewards: Sequence[float], step_infos: Sequence[_StepInfo]
    ) -> VecEnvStepReturn:
        """A step of every lane, as SB3 wants it."""
        for lane, (_, _, reset_info) in enumerate(step_infos):
            if reset_info is not None:
                self.reset_infos[lane] = reset_info
        dones = np.array([done for done, _, _ in step_infos], np.bool_)
        return observations, np.array(rewards, np.float32), dones, [info for _, info, _ in step_infos]

    def close(self) -> None:
        """Close the vector environment."""
        self.vector_env.close()

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """What each lane renders; None where there is nothing to see."""
        frames: Any = self.vector_env.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of each chosen lane.

        Raises:
            AttributeError: there is none of that name.
        """
        base = self.vector_env.unwrapped
        if hasattr(base, "envs"):
            return self.env_method("get_wrapper_attr", attr_name, indices=indices)
        if hasattr(base, "get_attr"):
            values = base.get_attr(attr_name)
        else:  # a vector environment that is not made of single ones
            values = [getattr(base, attr_name)] * self.num_envs
        return [values[lane] for lane in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:  # noqa: ANN401 - SB3's
        """Set the attribute of each chosen lane to the value.

        Raises:
            AttributeError: the vector environment cannot set attributes of its lanes, or only of all of them
                and the others have none of that name.
        """
        base: Any = self.vector_env.unwrapped
        chosen = {range(self.num_envs)[lane] for lane in self._get_indices(indices)}
        if len(chosen) == self.num_envs:
            base.set_attr(attr_name, [value] * self.num_envs)
        elif hasattr(base, "envs"):
            self.env_method("set_wrapper_attr", attr_name, value, indices=sorted(chosen))
        else:  # it sets every lane's or none, such as AsyncVectorEnv: the others keep the value they have
            values = list(base.get_attr(attr_name))
            base.set_attr(attr_name, [value if lane in chosen else old for lane, old in enumerate(values)])

    def env_method(
        self,
        method_name: str,
        *method_args: Any,  # noqa: ANN401 - whatever the method takes
        indices: VecEnvIndices = None,
        **method_kwargs: Any,  # noqa: ANN401 - whatever the method takes
    ) -> list[Any]:
        """Call the method of each chosen lane; returns what each call returned.

        Raises:
            NotImplementedError: some lanes are chosen, and the vector environment can only call them all.
        """
        base: Any = self.vector_env.unwrapped
        lanes = list(self._get_indices(indices))
        if lanes == list(range(self.num_envs)):
            return list(base.call(method_name, *method_args, **method_kwargs))
        if isinstance(base, LaneVectorEnv):
            chosen = [range(self.num_envs)[lane] for lane in lanes]
            values = base.call_in(chosen, method_name, *method_args, **method_kwargs)
            by_lane = dict(zip(sorted(set(chosen)), values, strict=True))
            return [by_lane[lane] for lane in chosen]
        if not hasattr(base, "envs"):
            raise NotImplementedError(
                f"{base} calls {method_name!r} in every lane or in none; got lanes {lanes}"
            )
        methods = [base.envs[lane].get_wrapper_attr(method_name) for lane in lanes]
        return [method(*method_args, **method_kwargs) for method in methods]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each chosen lane is wrapped in the class; False where lanes cannot be looked into."""
        envs = getattr(self.vector_env.unwrapped, "envs", None)
        lanes = self._get_indices(indices)
        return [envs is not None and is_wrapped(envs[lane], wrapper_class) for lane in lanes]

    def _batched(self, actions: Any) -> Any:  # noqa: ANN401 - of the action space
        """A batch of the action space; a list or an array has one action for each environment, as in SB3."""
        if not isinstance(self.action_space, spaces.Dict | spaces.Tuple):
            return actions
        if not isinstance(actions, list | np.ndarray):
            return actions
        empty: Any = create_empty_array(self.action_space, len(actions), np.zeros)
        return concatenate(self.action_space, actions, empty)

    def _reset_option(self) -> Any:  # noqa: ANN401 - Gymnasium knows of dicts, LaneVectorEnv of lists, too
        """The options of the next reset: one dict for all lanes where that will do."""
        if len(self._options) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} reset options, one a lane, got {self._options!r}")
        if not any(self._options):
            return None
        first = self._options[0]
        if all(options is first for options in self._options):
            return first
        if isinstance(self.vector_env.unwrapped, LaneVectorEnv):
            return [options or None for options in self._options]
        if any(options != first for options in self._options):
            raise ValueError(
                f"{self.vector_env} takes the same reset options for every lane, got {self._options!r}: make "
                "it an envs.lanes.LaneVectorEnv, or set one dict"
            )
        return first


def _check_same_step(vector_env: VectorEnv[Any, Any, Any]) -> None:
    if not isinstance(vector_env, VectorEnv):
        raise TypeError(f"expected a gymnasium.vector.VectorEnv, got {type(vector_env).__name__!r}")
    mode = vector_env.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.SAME_STEP:
        raise ValueError(
            f"{vector_env} has autoreset mode {mode!r}; expected {AutoresetMode.SAME_STEP!r}: "
            "make it with autoreset_mode=AutoresetMode.SAME_STEP"
        )


def _step_info(terminated: np.bool_, truncated: np.bool_, row: dict[str, Any]) -> _StepInfo:
    """What SB3 is given of a lane's step, from Gymnasium's info of it."""
    done = bool(terminated or truncated)
    info, reset_info = _split_info(row) if done else (row, None)
    info[TRUNCATED_KEY] = bool(truncated and not terminated)
    return done, info, reset_info


def _split_info(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The info of a done lane as (the ended episode's, the reset's)."""
    reset_info = dict(row)
    ended = dict(reset_info.pop("final_info", {}))
    ended["terminal_observation"] = reset_info.pop("final_obs")
    if EPISODE_KEY in reset_info:
        ended[EPISODE_KEY] = reset_info.pop(EPISODE_KEY)
    return ended, reset_info


def _plain(value: Any) -> Any:  # noqa: ANN401 - an info holds anything
    """A copy, with Python's scalars for numpy's."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {k: each if type(each) in _ATOMS else _plain(each) for k, each in value.items()}
    return deepcopy(value)
