"""The single environment: one query, reworded step by step until the target answers it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from envs.episode import (
    Episode,
    Rules,
    Transition,
    begin_together,
    derive_seed,
    restored_episode,
    step_together,
)
from envs.models import ModelCalls, Vector
from envs.observation import observation_space
from envs.queries import Query


class QueryMutationEnv(gymnasium.Env[Vector, np.int64]):
    """Choose a mutation of the query; the reward comes when the target answers it as it was meant.

    Observation: `Box` of float32, layout in `envs/observation.py`. Action: `Discrete(mutators)`.
    Reward: what `models.scorer` says, by default answered x intent kept - step cost. The episode
    terminates on success and is truncated after `rules.max_steps`.

    A step whose model call failed (after the dispatcher's retries) did not happen: reward 0, the
    observation, query and step number unchanged, `info["unscored"]` True and `info["error"]` saying
    why. A failure that no retry can mend truncates the episode.

    `reset(options={"query": text})` starts on that text; without it the query is drawn by the seed.

    `envs.make.rules_and_models` makes the first two arguments.

    Args:
        rules: its mutators and limits.
        models: its calls: what rewords, embeds, answers and scores; several may share it.
        queries: what episodes start from: texts, or queries of `load_queries`.

    Raises:
        ValueError: there are no queries.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(self, rules: Rules, models: ModelCalls, queries: Sequence[str | Query]) -> None:
        if not queries:
            raise ValueError("queries is empty; expected at least one query to reword")
        self.rules, self.models = rules, models
        self.know([each if isinstance(each, str) else each.text for each in queries], {})
        self.num_actions = len(rules.mutators)
        self.observation_space = observation_space(models.encoder.dimension, self.num_actions)
        self.action_space = gymnasium.spaces.Discrete(self.num_actions)
        self.episode: Episode | None = None
        """The one under way, or the last one."""
        self.is_over = True
        """Whether `reset` is to be called before the next step."""
        self._next_number = 0
        self.recorded: deque[Mapping[str, Any] | None] = deque()
        """See `replay_unscored`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Start an episode; returns (observation, info). A seed restarts the lane's stream.

        Raises:
            OllamaError: the query could not be embedded.
            ValueError: an unknown option.
        """
        ((observation, info),) = reset_together([self], [seed], options)
        return observation, info

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Reword, ask, score; returns Gymnasium's five values.

        Raises:
            gymnasium.error.ResetNeeded: no episode is under way.
            gymnasium.error.InvalidAction: the action is not in the action space.
        """
        (taken,) = step_envs([self], [action])
        return taken

    def next_episode(self, seed: int | None, options: Mapping[str, Any] | None) -> Episode:
        """The episode that `reset` starts, which takes its place with `begin`."""
        super().reset(seed=seed)
        self.np_random  # noqa: B018 - reading it makes Gymnasium draw a seed where none was given
        lane_seed, number = int(self.np_random_seed), self._next_number if seed is None else 0
        if unknown := set(options or {}) - {"query"}:
            raise ValueError(f"reset options are {sorted(unknown)!r}; expected 'query' alone")
        if options:
            query = str(options["query"])
        else:
            stream = np.random.default_rng(derive_seed(lane_seed, number, "query"))
            sides = self._sides
            side = sides[int(stream.integers(2))] if len(sides) > 1 else sides[0]
            query = side[int(stream.integers(len(side)))]
        episode = Episode(rules=self.rules, original=query, seed=lane_seed, number=number)
        if query in self.looks:
            episode.look_at(*self.looks[query])
        return episode

    def know(self, queries: Sequence[str], looks: Mapping[str, tuple[float, str]]) -> None:
        """Have episodes begin with these queries from the next one on.

        Half of them begin with a guard query, where there are any. `looks` are by query the reward
        and the label of the reply to it as it stands, where that is known: the first observation
        has them, and `noop` ends the episode without a call, for nothing.
        """
        self.queries, self.looks = tuple(queries), looks
        guard = [query for query in queries if query in self.rules.guards]
        others = [query for query in queries if query not in self.rules.guards]
        self._sides = [side for side in (others, guard) if side]

    def begin(self, episode: Episode) -> dict[str, Any]:
        """Start an episode that is embedded; returns its info."""
        self.episode, self.is_over = episode, False
        self._next_number = episode.number + 1
        return {"original_query": episode.original, "episode_number": episode.number}

    def check(self, action: int | np.int64) -> Episode:
        """The episode under way, if `action` can be taken in it; raises what `step` raises."""
        if self.episode is None or self.is_over:
            raise gymnasium.error.ResetNeeded("call reset() before step(): no episode is under way")
        if not self.action_space.contains(action):
            expected = f"an integer from 0 to {self.num_actions - 1}"
            raise gymnasium.error.InvalidAction(f"expected {expected}, got {action!r}")
        return self.episode

    def replay_unscored(self, lines: Iterable[Mapping[str, Any] | None]) -> None:
        """Have coming steps be unscored as they were in a recorded run, without a call.

        Args:
            lines: for each step its line of transitions.jsonl; None where it is played as usual.
        """
        self.recorded.extend(lines)

    def state(self) -> dict[str, Any]:
        """The whole state of the lane between two steps, as plain data for `restored`.

        Raises:
            gymnasium.error.ResetNeeded: no episode is under way.
        """
        return {"next_number": self._next_number, "episode": self.check(0).state()}

    def restored(self, state: Mapping[str, Any]) -> Episode:
        """Go on from the `state` of an environment like this one; call `begin_together` next."""
        episode = restored_episode(self.rules, state["episode"])
        super().reset(seed=episode.seed)
        self.begin(episode)
        self._next_number = state["next_number"]
        return episode


def reset_together(
    envs: Sequence[QueryMutationEnv],
    seeds: Sequence[int | None],
    options: dict[str, Any] | None = None,
) -> list[tuple[Vector, dict[str, Any]]]:
    """`reset` of environments that share their models."""
    if not envs:
        return []
    pairs = zip(envs, seeds, strict=True)
    episodes = [env.next_episode(seed, options) for env, seed in pairs]
    observations = begin_together(episodes, envs[0].models)
    begun = zip(envs, episodes, observations, strict=True)
    return [(observation, env.begin(episode)) for env, episode, observation in begun]


def step_envs(
    envs: Sequence[QueryMutationEnv], actions: Sequence[int | np.int64], max_workers: int = 1
) -> list[Transition]:
    """`step` of environments that share their models, with at most `max_workers` calls at once."""
    episodes = [env.check(action) for env, action in zip(envs, actions, strict=True)]
    steps: dict[int, Transition] = {}
    for lane, env in enumerate(envs):
        line = env.recorded.popleft() if env.recorded else None
        if line:
            steps[lane] = episodes[lane].fail_again(int(actions[lane]), line)
    played = [lane for lane in range(len(envs)) if lane not in steps]
    taken = step_together(
        [episodes[lane] for lane in played],
        [int(actions[lane]) for lane in played],
        envs[0].models,
        max_workers,
    )
    steps |= zip(played, taken, strict=True)
    for lane, env in enumerate(envs):
        env.is_over = steps[lane].is_over
    return [steps[lane] for lane in range(len(envs))]
