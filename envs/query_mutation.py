"""The single environment: one query, reworded step by step until the target answers it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.answering import Answerer, Models
from envs.episode import (
    Episode,
    EpisodePlan,
    Rules,
    Transition,
    derive_seed,
    episode_state,
    replayed,
    restored_episode,
)
from envs.mission import MissionConfig
from envs.observation import observation_space
from mutators.registry import load_mutators
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.plans import play_plan
from scorers.reward import Scorer

Observation = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """What an environment is, as plain data."""

    models: Models
    mutators: tuple[str, ...] = MissionConfig.mutators
    """Names, or `path/to/file.py:name` for a user's own; action k is the k-th."""
    max_steps: int = MissionConfig.max_steps
    """Steps after which an unanswered query is given up."""
    intent_threshold: float = MissionConfig.intent_threshold
    """A reworded query less similar to the original than this is not adopted."""

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps!r}")


class QueryMutationEnv(gymnasium.Env[Observation, np.int64]):
    """Choose a mutation of the query; the reward comes when the target answers it and the intent is kept.

    Observation: `Box` of float32, layout in `envs/observation.py`. Action: `Discrete(len(mutators))`.
    Reward: what `scorer` says, by default answered x intent kept - step cost. The episode terminates on
    success and is truncated after `max_steps`.

    A step whose model call failed (after the dispatcher's retries) did not happen: reward 0, the
    observation, query and step number unchanged, `info["unscored"]` True and `info["error"]` saying why.

    `reset(options={"query": text})` starts on that text; without it the query is drawn by the seed.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self,
        config: EnvConfig,
        *,
        queries: Sequence[str],
        dispatcher: Dispatcher,
        encoder: Encoder,
        scorer: Scorer,
    ) -> None:
        if not queries:
            raise ValueError("queries is empty; expected at least one query to reword")
        self.config = config
        self.queries = tuple(queries)
        self.answerer = Answerer(models=config.models, dispatcher=dispatcher, encoder=encoder, scorer=scorer)
        self.rules = Rules(
            mutators=load_mutators(config.mutators),
            max_steps=config.max_steps,
            intent_threshold=config.intent_threshold,
        )
        self.num_actions = len(self.rules.mutators)
        self.observation_space = observation_space(encoder.dimension, self.num_actions)
        self.action_space = gymnasium.spaces.Discrete(self.num_actions)
        self.episode: Episode | None = None
        self._over = True
        self._next_number = 0
        self._to_replay: deque[Mapping[str, Any] | None] = deque()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; returns (observation, info). A seed restarts the lane's stream.

        Raises:
            OllamaError: the query could not be embedded.
            ValueError: an unknown option.
        """
        return play_plan(self.plan_reset(seed=seed, options=options), self.answerer.answer)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Reword, ask, score; returns Gymnasium's five values.

        Raises:
            gymnasium.error.ResetNeeded: no episode is under way.
            gymnasium.error.InvalidAction: the action is not in the action space.
        """
        t = play_plan(self.plan_step(action), self.answerer.answer)
        return t.observation, t.reward, t.terminated, t.truncated, t.info

    def plan_reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> EpisodePlan[tuple[Observation, dict[str, Any]]]:
        """`reset` as a plan, for a schedule to play."""
        super().reset(seed=seed)
        if seed is not None:
            self._next_number = 0
        episode = Episode(
            rules=self.rules,
            original=self._query(options or {}),
            seed=self.lane_seed,
            number=self._next_number,
        )
        first = yield from episode.begin()
        self.episode, self._over = episode, False
        self._next_number += 1
        return first, {"original_query": episode.original, "episode_number": episode.number}

    def plan_step(self, action: np.int64) -> EpisodePlan[Transition]:
        """`step` as a plan, for a schedule to play; raises at once what `step` raises."""
        return self._steps(self.check(action), int(action))

    def replay(self, steps: Iterable[Mapping[str, Any] | None]) -> None:
        """Play the coming steps as they were recorded, without calling a model.

        Args:
            steps: their lines of transitions.jsonl; the actions must be the recorded ones. None: the step is
                played as ever.
        """
        self._to_replay.extend(steps)

    @property
    def replays(self) -> bool:
        """Whether the next step is played as it was recorded."""
        return bool(self._to_replay)

    def state(self) -> dict[str, Any]:
        """All that the lane is between two steps, as plain data for `plan_restore`.

        Raises:
            gymnasium.error.ResetNeeded: no episode is under way.
        """
        return {"next_number": self._next_number, "episode": episode_state(self._under_way())}

    def plan_restore(self, state: Mapping[str, Any]) -> EpisodePlan[Observation]:
        """Go on where another environment of this config was, as a plan; returns the observation.

        Raises:
            OllamaError: a query could not be embedded.
        """
        episode = restored_episode(self.rules, state["episode"])
        observation = yield from episode.recall()
        super().reset(seed=episode.seed)
        self.episode, self._over = episode, False
        self._next_number = state["next_number"]
        return observation

    def check(self, action: np.int64) -> Episode:
        """The episode under way, if `action` can be taken in it; raises what `step` raises."""
        episode = self._under_way()
        if not self.action_space.contains(action):
            expected = f"an integer from 0 to {self.num_actions - 1}"
            raise gymnasium.error.InvalidAction(f"expected {expected}, got {action!r}")
        return episode

    @property
    def lane_seed(self) -> int:
        """The seed of this lane's stream: the last one given to `reset`, or one the system gave."""
        self.np_random  # noqa: B018 - reading it makes Gymnasium draw a seed where none was given
        return int(self.np_random_seed)

    def _under_way(self) -> Episode:
        if self.episode is None or self._over:
            raise gymnasium.error.ResetNeeded("call reset() before step(): no episode is under way")
        return self.episode

    def _steps(self, episode: Episode, action: int) -> EpisodePlan[Transition]:
        steps = episode.step(action)
        if self._to_replay and (line := self._to_replay.popleft()) is not None:
            steps = replayed(steps, line)
        transition = yield from steps
        self._over = transition.terminated or transition.truncated
        return transition

    def _query(self, options: dict[str, Any]) -> str:
        unknown = set(options) - {"query"}
        if unknown:
            raise ValueError(f"reset options are {sorted(unknown)!r}; expected 'query' alone")
        if "query" in options:
            return str(options["query"])
        stream = np.random.default_rng(derive_seed(self.lane_seed, self._next_number, "query"))
        return self.queries[int(stream.integers(len(self.queries)))]
