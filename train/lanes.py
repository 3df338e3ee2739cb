"""Rollouts without a barrier inside: no lane waits for another's step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize, VecTransposeImage

from envs.lanes import LaneVectorEnv
from envs.sb3 import GymnasiumVecEnv, LaneStep
from train.ppo import MaskedPPO
from train.rollouts import Choice, MaskedRollouts

Choose = Callable[[NDArray[Any], Sequence[int], Sequence[int]], Choice]
"""Chooses the next actions of N lanes from what they show and how many actions each took before."""


class LaneRollouts(MaskedRollouts):
    """MaskedRollouts from environments whose step waits, such as for a model's reply.

    The policy is constant while a rollout is collected, so lanes need no common clock inside it: each takes
    its `n_steps` steps, one as soon as the last is there, and the end of the rollout is the only barrier.
    Every lane takes as many steps as every other, however long they last: the data are on-policy, unbiased.
    Rows are handed on when they are complete, in order: buffer, callbacks and wrappers see what they see
    without lanes, and the weights are the same bits.

    Each environment may be wrapped as one likes (`Monitor`, ...), the whole in `VecMonitor` or in
    `VecNormalize(norm_obs=False)`, whose statistics count a step that did not happen as one that paid 0.
    What changes observations or actions by whole rows is refused: a lane acts before its row is complete.
    `VecTransposeImage`, in which SB3 wraps images whose channels come last, changes each lane's alone.
    Callbacks may ask something of the environments at the start and the end of a rollout alone: in between
    steps are under way, which is an AlreadyPendingCallError.
    After a callback stopped the training, or an error, `learn` starts new episodes. Steps that are under way
    when a callback stops it are waited for and dropped.

    Raises:
        TypeError: the environment has no lanes that can be stepped one by one.
        ValueError: a wrapper changes observations, or actions.
    """

    _rollout: LaneRollout | None = None

    def act(self, env: VecEnv, shown: NDArray[Any], rows_left: int) -> Choice:
        """The actions of the row that is complete next, whose steps are taken already: `env.step` gives them.

        See MaskedRollouts.act.
        """
        lanes = lanes_of(env)
        if self._rollout is None:
            self._rollout = LaneRollout(env, self.choose, shown, self.actions_per_lane, rows_left)
        choice, steps = self._rollout.next_row(shown)
        if rows_left == 1:
            self._rollout = None
        lanes.deliver(choice.actions + self.first_action, steps)
        return choice

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fill the buffer with `n_rollout_steps` rows of all lanes; False if a callback stopped it.

        What the lanes still do then is waited for and dropped.

        Raises:
            ValueError: a lane ended its episode with an unscored step; a wrapper changes observations.
            TypeError: the buffer has no mask.
        """
        done = False
        try:
            done = super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        finally:
            if not done:  # lanes are ahead of the row that was the last to count
                self._rollout = self._last_obs = None
        if not done:
            lanes_of(env).drop()
        return done

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.env is not None:
            check_wrappers(self.env)

    def set_env(self, env: Any, force_reset: bool = True) -> None:  # noqa: ANN401, FBT001, FBT002 - SB3's signature
        """Learn on another environment from now on; see SB3's set_env.

        Raises:
            TypeError: it has no lanes that can be stepped one by one; the model keeps the one it has.
            ValueError: a wrapper changes observations; the model keeps the one it has.
        """
        wrapped = self._wrap_env(env, self.verbose)
        check_wrappers(wrapped)
        super().set_env(wrapped, force_reset)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_rollout"]


class LanePPO(LaneRollouts, MaskedPPO):
    """MaskedPPO that collects as `LaneRollouts` does.

    env = GymnasiumVecEnv(LaneVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP))
    LanePPO("MlpPolicy", env).learn(100_000)
    """


class LaneRollout:
    """Lanes that each take as many steps without waiting for each other, returned row by row.

    Args:
        env: the environments, with all their wrappers.
        choose: the policy, which must stay as it is.
        shown: (n_envs, ...), what they show at the start.
        taken: how many actions each of them took before.
        rows: steps that each is to take.
    """

    def __init__(self, env: VecEnv, choose: Choose, shown: NDArray[Any], taken: int, rows: int) -> None:
        self._lanes = lanes_of(env)
        self._transposers = transposers_of(env)
        self._first_action = int(env.action_space.start)  # type: ignore[attr-defined] # Discrete
        self._choose = choose
        self._end = taken + rows
        self._taken = [taken] * env.num_envs
        self._chosen: list[deque[tuple[Any, Any, Any]]] = [deque() for _ in self._taken]
        self._ended: list[deque[LaneStep]] = [deque() for _ in self._taken]
        self._shown = shown
        self._send(shown, range(env.num_envs))

    def next_row(self, shown: NDArray[Any]) -> tuple[Choice, list[LaneStep]]:
        """The next row that every lane has ended: what was chosen in it, and the steps in lane order.

        Args:
            shown: (n_envs, ...), what the learner takes for the observations of this row.

        Raises:
            ValueError: they are not what the lanes acted on.
        """
        if not np.array_equal(shown, self._shown, equal_nan=True):
            raise ValueError(
                "a wrapper changes observations by whole rows, but a lane acts on its own before its row is "
                "complete: change them in each environment"
            )
        while not all(self._ended):
            steps = self._lanes.recv()
            for step in steps:
                self._ended[step.lane].append(step)
            going_on = [step for step in steps if self._taken[step.lane] < self._end]
            if going_on:
                self._send(self._seen(going_on), [step.lane for step in going_on])
        chosen = zip(*(choices.popleft() for choices in self._chosen), strict=True)
        row = [steps.popleft() for steps in self._ended]
        self._shown = self._seen(row)
        return Choice(*map(np.array, chosen)), row

    def _send(self, shown: NDArray[Any], lanes: Sequence[int]) -> None:
        choice = self._choose(shown, lanes, [self._taken[lane] for lane in lanes])
        for lane, *chosen in zip(lanes, *choice, strict=True):
            self._chosen[lane].append((chosen[0], chosen[1], chosen[2]))
            self._taken[lane] += 1
        self._lanes.send(choice.actions + self._first_action, lanes)

    def _seen(self, steps: Sequence[LaneStep]) -> NDArray[Any]:
        """What the policy sees of what the lanes show after these steps."""
        shown = np.stack([step.observation for step in steps])
        for wrapper in self._transposers:
            shown = np.asarray(wrapper.transpose_observations(shown))
        return shown


def lanes_of(env: VecEnv) -> GymnasiumVecEnv:
    """The lanes under an environment's wrappers.

    Raises:
        TypeError: there are none that can be stepped one by one.
    """
    base = env.unwrapped
    if isinstance(base, GymnasiumVecEnv) and isinstance(base.vector_env, LaneVectorEnv):
        return base
    under = base.vector_env if isinstance(base, GymnasiumVecEnv) else base
    raise TypeError(
        f"this algorithm steps lanes one by one, which {type(under).__name__} cannot; expected "
        "GymnasiumVecEnv(LaneVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)), "
        "wrapped lane by lane or in VecMonitor"
    )


def transposers_of(env: VecEnv) -> list[VecTransposeImage]:
    """The wrappers that put images' channels first, the innermost first."""
    found: list[VecTransposeImage] = []
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecTransposeImage):
            found.insert(0, env)
        env = env.venv
    return found


def check_wrappers(env: VecEnv) -> None:
    """Check that lanes can act on what they show before their row is complete.

    Raises:
        TypeError: there are no lanes that can be stepped one by one.
        ValueError: a wrapper changes observations, and not those of each lane alone.
    """
    lanes_of(env)
    wrapper = env
    while isinstance(wrapper, VecEnvWrapper):
        normalises = isinstance(wrapper, VecNormalize) and wrapper.norm_obs
        transposes = isinstance(wrapper, VecTransposeImage)
        changes = wrapper.observation_space != wrapper.venv.observation_space and not transposes
        if normalises or changes:
            hint = ": pass norm_obs=False, or normalise in each environment" if normalises else ""
            raise ValueError(
                f"{type(wrapper).__name__} changes observations by whole rows, but a lane acts on its own "
                f"before its row is complete{hint}"
            )
        wrapper = wrapper.venv
