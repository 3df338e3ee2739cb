"""Stable-Baselines3's PPO in lanes that do not wait for each other; failed steps did not happen.

The policy stays as it is while a rollout is collected, so lanes need no common clock: each plays
its steps on a thread of its own, and the end of the rollout is the only barrier. Each row has a
forward pass of its own and all chance is keyed (seed, purpose, counters), so the weights are the
same bits for one worker and for sixteen, whatever the order in which steps end.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Self, SupportsFloat

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from train.network import QueryPolicy

NOISE, SHUFFLE, LANE, UPDATE, FIT, KEPT = range(6)
"""What a stream of chance is for: the first number of its key. A number never changes."""
UPDATE_LOCK = threading.Lock()
"""Is held while torch's global generator is seeded and used: trainings may share a process."""

Floats = NDArray[np.float32]
Result = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
"""What an environment's `step` returns."""
Ended = tuple[int, "Step | BaseException"]
"""A lane and its step, or what went wrong there."""


def stream(seed: int, *key: int) -> np.random.Generator:
    """The random stream of a seed and a key; runs with neighbouring seeds share none."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def key_seed(seed: int, *key: int) -> int:
    """A seed for a random generator of another library, such as torch's."""
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0])


class Step(NamedTuple):
    """A step of a lane, as it is learned from."""

    observation: NDArray[Any]
    """What the environment showed before it."""
    action: int
    value: float
    log_prob: float
    reward: float
    learned_reward: float
    """The reward, and where truncated gamma times the value of what was to come."""
    done: bool
    info: dict[str, Any]


def advantages(
    rewards: Floats,
    values: Floats,
    last_values: Floats,
    *,
    scored: NDArray[np.bool_],
    dones: NDArray[np.bool_],
    gamma: float,
    gae_lambda: float,
) -> Floats:
    """The advantages of T steps of N lanes, by GAE(lambda) (arXiv 1506.02438); all are (T, N).

    A step that is not scored is skipped. Where it ended its episode, the step before it looks ahead
    to the value of its own next observation, and no further. `last_values` (N,) are those of what
    the lanes show after the last step.
    """
    found = np.zeros_like(rewards)
    advantage, value = np.zeros_like(last_values), last_values
    for t in reversed(range(len(rewards))):
        goes_on = gamma * (1 - dones[t].astype(np.float32))
        delta = rewards[t] + goes_on * value - values[t]
        joined = delta + goes_on * gae_lambda * advantage
        found[t] = np.where(scored[t], joined, 0)
        advantage = np.where(scored[t], joined, np.where(dones[t], 0, advantage))
        value = np.where(scored[t] | dones[t], values[t], value)
    return found


class ScoredBuffer(RolloutBuffer):
    """SB3's buffer with a mask: rows that are not scored are as if they were not there.

    `scored` and `dones` are (n_steps, n_envs), bool: whether the step counts, and whether it ended
    its episode. With every row scored the advantages and returns are SB3's. Shuffles are keyed by
    `seed` and `update`.
    """

    seed: int = 0
    update: int = 0

    def reset(self) -> None:
        """Empty it."""
        super().reset()
        self.scored = np.zeros((self.buffer_size, self.n_envs), np.bool_)
        self.dones = np.zeros((self.buffer_size, self.n_envs), np.bool_)
        self.epoch = 0

    def write(self, row: Sequence[Step]) -> None:
        """Append a row of all lanes."""
        for lane, step in enumerate(row):
            place = self.pos, lane
            self.observations[place], self.actions[place] = step.observation, step.action
            self.values[place], self.log_probs[place] = step.value, step.log_prob
            self.rewards[place] = step.learned_reward
            self.scored[place] = not step.info.get("unscored", False)
            self.dones[place] = step.done
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def finish(self, last_values: NDArray[np.float32]) -> None:
        """Fill in advantages and returns.

        `last_values` (n_envs,) are those of the observations after the last row.
        """
        self.advantages = advantages(
            self.rewards,
            self.values,
            last_values,
            scored=self.scored,
            dones=self.dones,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        self.returns = self.advantages + self.values

    def get(self, batch_size: int | None = None) -> Generator[RolloutBufferSamples, None, None]:
        """One epoch: every scored row once, in shuffled minibatches of at most so many rows [all].

        They are as even as can be: a failed call never leaves a minibatch of a single row.
        """
        if not self.generator_ready:
            scored = self.swap_and_flatten(self.scored)[:, 0]
            for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
                setattr(self, name, self.swap_and_flatten(getattr(self, name))[scored])
            self.generator_ready = True
        count = len(self.advantages)
        rows = stream(self.seed, SHUFFLE, self.update, self.epoch).permutation(count)
        self.epoch += 1
        batches = -(-count // (batch_size or count or 1))
        for batch in np.array_split(rows, batches or 1):
            yield self._get_samples(batch)


class LaneEnvs(DummyVecEnv):
    """What SB3 sees of the environments: spaces and resets. Steps are taken by `LanePPO`."""

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Have each environment's next reset seeded with a key of its own."""
        super().seed(seed)
        if seed is not None:
            self._seeds = [key_seed(seed, LANE, lane) for lane in range(self.num_envs)]
        return self._seeds


class LanePPO(PPO):
    """SB3's PPO for environments whose step waits, such as for a model's reply.

    LanePPO("MlpPolicy", [gymnasium.make(...) for _ in range(16)]).learn(100_000)

    A step whose info has `unscored` True is masked in the `ScoredBuffer`: nothing is learned from
    it. Callbacks get a row of all lanes as soon as every lane has it, in order. When a callback
    stops the training, steps under way are waited for and dropped, and `learn` begins new episodes.

    Args:
        policy: SB3's name of a policy, or its class.
        envs: a Gymnasium environment a lane; wrap each as you like. None: the model only predicts.
        workers: the most environments that step at once [all]; 1: one after another.
        step_all: steps all environments together, given their actions, in place of lanes.
        options: those of SB3's PPO.

    Raises:
        TypeError: these are no environments, or the actions are not `Discrete` from 0.
        ValueError: there is no environment.
    """

    rollout_buffer: ScoredBuffer
    policy: ActorCriticPolicy

    def __init__(
        self,
        policy: Any,  # noqa: ANN401 - SB3's name or class
        envs: Sequence[gymnasium.Env[Any, Any]] | None = None,
        *,
        workers: int | None = None,
        step_all: Callable[[Sequence[int]], Sequence[Result]] | None = None,
        **options: Any,  # noqa: ANN401 - SB3's
    ) -> None:
        self.workers, self.step_all = workers, step_all
        self.rollouts = self.rows = self.skipped_updates = 0
        """Rollouts that were collected, rows in them, and updates without a scored row."""
        self._shown: list[Any] = []
        """What each lane shows."""
        self._threads: list[threading.Thread] = []
        self._policy_lock = threading.Lock()
        options.pop("env", None)  # SB3's `load` passes None
        mine: dict[str, Any] = {"rollout_buffer_class": ScoredBuffer, "device": "cpu"}
        env: Any = None if envs is None else _lane_envs(envs)
        super().__init__(policy, env, **(mine | options))

    @property
    def lanes(self) -> list[gymnasium.Env[Any, Any]]:
        """The environments."""
        env = self.env.unwrapped if self.env else None
        return env.envs if isinstance(env, LaneEnvs) else []

    @classmethod
    def load(  # type: ignore[override]  # environments in place of SB3's vector
        cls,
        path: str | Path,
        envs: Sequence[gymnasium.Env[Any, Any]] | None = None,
        *,
        workers: int | None = None,
        **options: Any,  # noqa: ANN401 - SB3's
    ) -> Self:
        """A model that `save` wrote, to learn on with `envs`."""
        model = super().load(path, **options)
        if envs is not None:
            model.set_env(_lane_envs(envs))
            model.workers = workers
        return model

    def choose(self, observation: NDArray[Any], lane: int, row: int) -> tuple[int, float, float]:
        """Draw an action for one observation; returns it, its value and its log probability.

        Chance is keyed (seed, lane, row), `row` being how many actions the lane took before.
        """
        logits, value = self._forward(observation)
        noise = stream(self.seed or 0, NOISE, lane, row).gumbel(size=len(logits))
        action = int(np.argmax(logits + noise))
        return action, value, float(logits[action])

    def value(self, observation: NDArray[Any]) -> float:
        """What is expected to come from here."""
        return self._forward(observation)[1]

    def greedy(self, observation: NDArray[Any]) -> int:
        """The likeliest action; for any thread."""
        with self._policy_lock:
            return int(np.argmax(self._forward(observation)[0]))

    def update(self) -> None:
        """Learn from the rollout buffer, in which some row is scored."""
        super().train()

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """Fill the buffer with rows of all lanes; False if a callback stopped it.

        Steps are taken on other threads, so that a signal breaks none of them off.
        """
        buffer = self.rollout_buffer
        buffer.reset()
        buffer.seed, buffer.update = self.seed or 0, self.rollouts
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        # If it is stopped, new episodes begin.
        self._shown, self._last_obs = list(np.asarray(self._last_obs)), None
        steps: list[deque[Step]] = [deque() for _ in self._shown]
        ended: SimpleQueue[Ended] = SimpleQueue()
        is_stopped = threading.Event()
        try:
            self._start_lanes(range(self.rows, self.rows + n_rollout_steps), ended, is_stopped)
            for _ in range(n_rollout_steps):
                while not all(steps):
                    lane, step = ended.get()
                    if isinstance(step, BaseException):
                        raise step
                    steps[lane].append(step)
                row = [each.popleft() for each in steps]
                buffer.write(row)
                self.rows += 1
                self.num_timesteps += env.num_envs
                # Callbacks read these names by `update_locals`.
                infos = [step.info for step in row]
                rewards = np.array([step.reward for step in row])
                dones = np.array([step.done for step in row])
                self._update_info_buffer(infos, dones)
                callback.update_locals(locals())
                if not callback.on_step():
                    is_stopped.set()
                    self._join_lanes()
                    return False
        finally:
            is_stopped.set()
        self._last_obs = np.stack(self._shown)
        buffer.finish(np.array([self.value(each) for each in self._shown], np.float32))
        self.rollouts += 1
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def train(self) -> None:
        """Update on the scored rows, if there are any. Chance is keyed (seed, update)."""
        if self.rollout_buffer.scored.any():
            with UPDATE_LOCK, torch.random.fork_rng(devices=[]):
                torch.manual_seed(key_seed(self.seed or 0, UPDATE, self.rollouts))
                self.update()
        else:
            self.skipped_updates += 1
        self.logger.record("train/skipped_updates", self.skipped_updates)

    def _start_lanes(
        self, span: range, ended: SimpleQueue[Ended], is_stopped: threading.Event
    ) -> None:
        """Have all lanes take the steps of these rows, and put them where they are waited for."""
        all_lanes = range(len(self._shown))
        places = threading.Semaphore(self.workers or len(all_lanes))

        def play(lanes: range) -> None:
            try:
                for row in span:
                    with places:
                        for step in self._steps(lanes, row):
                            ended.put(step)
                            if is_stopped.is_set():
                                return
            except BaseException as error:  # noqa: BLE001 - raised on the thread that learns
                ended.put((0, error))

        in_step = self.step_all is not None or self.workers == 1
        groups = [all_lanes] if in_step else [range(lane, lane + 1) for lane in all_lanes]
        self._threads = [
            threading.Thread(target=play, args=(lanes,), name=f"lane-{lanes.start}")
            for lanes in groups
        ]
        for thread in self._threads:
            thread.start()

    def _steps(self, lanes: range, row: int) -> Iterator[tuple[int, Step]]:
        """One step of some lanes, taken all together or one after another."""
        choices = [self._choose(lane, row) for lane in lanes]
        results: Iterable[Result]
        if self.step_all is None:
            chosen = zip(lanes, choices, strict=True)
            results = (self.lanes[lane].step(np.int64(action)) for lane, (action, _, _) in chosen)
        else:
            results = self.step_all([action for action, _, _ in choices])
        for lane, choice, result in zip(lanes, choices, results, strict=True):
            yield lane, self.end_step(lane, choice, result)

    def _choose(self, lane: int, row: int) -> tuple[int, float, float]:
        with self._policy_lock:  # torch on many threads at once is slower than in turn
            return self.choose(self._shown[lane], lane, row)

    def end_step(self, lane: int, choice: tuple[int, float, float], result: Result) -> Step:
        """A step that was taken; where it ended its episode the next one begins."""
        before, (after, reward, terminated, truncated, info) = self._shown[lane], result
        learned = float(reward)
        info = {**info, "TimeLimit.truncated": truncated and not terminated}
        if truncated and not terminated:
            with self._policy_lock:
                learned += self.gamma * self.value(after)
        if terminated or truncated:
            info["terminal_observation"] = after
            after, _ = self.lanes[lane].reset()
        self._shown[lane] = after
        return Step(before, *choice, float(reward), learned, terminated or truncated, info)

    def _join_lanes(self) -> None:
        for thread in self._threads:
            thread.join()

    def _setup_learn(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - SB3's
        self._join_lanes()  # of a training that ended by an error
        return super()._setup_learn(*args, **options)

    def _setup_model(self) -> None:
        actions = self.action_space
        if self.env is not None and not (
            isinstance(actions, spaces.Discrete) and not actions.start
        ):
            raise TypeError(f"the action space is {actions}; expected Discrete actions from 0")
        if not isinstance(self.env, LaneEnvs | None):  # SB3 has wrapped it
            raise TypeError("expected images with their channels first: wrap each environment")
        if self.seed is None:
            self.seed = int(np.random.SeedSequence().generate_state(1)[0])
        super()._setup_model()

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "step_all", "_shown", "_threads", "_policy_lock"]

    @torch.no_grad()
    def _forward(self, observation: NDArray[Any]) -> tuple[NDArray[np.float32], float]:
        """The normalised logits (A,) and the value of one observation."""
        if isinstance(self.policy, QueryPolicy):
            return self.policy.score_one(observation)
        seen, _ = self.policy.obs_to_tensor(observation)
        logits = self.policy.get_distribution(seen).distribution.logits  # type: ignore[union-attr]  # Discrete
        return logits[0].cpu().numpy(), float(self.policy.predict_values(seen))


def weights_sha256(policy: torch.nn.Module | Mapping[str, torch.Tensor]) -> str:
    """A hash of a policy's weights, or of its `state_dict`: names, dtypes, shapes and bytes."""
    weights = policy.state_dict() if isinstance(policy, torch.nn.Module) else policy
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _lane_envs(envs: Sequence[gymnasium.Env[Any, Any]]) -> LaneEnvs:
    if isinstance(envs, VecEnv | gymnasium.vector.VectorEnv | gymnasium.Env):
        raise TypeError(
            f"expected a list of Gymnasium environments, one a lane, got {type(envs).__name__}: "
            "wrap each environment by itself, for lanes do not wait for each other"
        )
    envs = list(envs)
    if not envs:
        raise ValueError("expected at least one environment, got none")
    return LaneEnvs([lambda env=env: env for env in envs])  # type: ignore[misc]
