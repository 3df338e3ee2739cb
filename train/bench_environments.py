"""The environments that bench times: the same lanes under every schedule, as one SB3 vector environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from envs.batched import BatchedQueryMutationEnv
from envs.parts import Parts, make_parts
from envs.query_mutation import EnvConfig, QueryMutationEnv
from envs.sb3 import GymnasiumVecEnv
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.dispatcher import Dispatcher
from train.bench_plan import Setting


@dataclass(frozen=True, kw_only=True)
class World:
    """What every lane is, as plain data: a process of its own can make one, too."""

    host: str
    model: str
    """Plays every role: its slots are all the slots there are."""
    queries: tuple[str, ...]
    encoder: str
    judge: bool

    def parts(self, dispatcher: Dispatcher) -> tuple[EnvConfig, Parts]:
        """The config and the parts of an environment, its encoder new: no row finds its texts encoded.

        Raises:
            ValueError: there is no such encoder.
            OllamaError: its model does not answer.
        """
        return make_parts(
            dispatcher,
            self.queries,
            target_model=self.model,
            judge_model=self.model,
            encoder=self.encoder,
            reward="judge" if self.judge else "refusal",
            mutators=[each.name for each in load_mutators(DEFAULT_MUTATORS) if each.kind == "model"],
        )

    def __call__(self) -> QueryMutationEnv:
        """One environment with a dispatcher of its own, for a process of its own."""
        config, parts = self.parts(Dispatcher([self.host], cache_size=0))
        return QueryMutationEnv(config, **parts)


def make_vec_env(world: World, dispatcher: Dispatcher, setting: Setting) -> VecEnv:
    """The lanes of a row.

    Under `gym-async` (SAME_STEP) and `sb3-subproc` each is a process with a dispatcher of its own, as these
    vector environments come; under the others all are in this process and share `dispatcher`.

    Raises:
        ValueError, OllamaError: see World.parts.
    """
    lanes = setting.num_processes
    if setting.driver == "gym-async":
        env = AsyncVectorEnv([world] * lanes, autoreset_mode=AutoresetMode.SAME_STEP)
        return GymnasiumVecEnv(env)
    if setting.driver == "sb3-subproc":
        return SubprocVecEnv([world] * lanes)
    config, parts = world.parts(dispatcher)
    more: dict[str, Any] = {"schedule": setting.driver, "max_workers": setting.max_workers}
    return GymnasiumVecEnv(BatchedQueryMutationEnv(config, lanes, **more, **parts))
