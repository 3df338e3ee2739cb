"""Plays the kept queries at the looks of a run: its policy, and each mutator alone (`train.gain`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from envs.episode import MOST_ATTEMPTS, Episode, EpisodePlan, Transition, derive_seed
from ollama_utils.plans import play_plans
from records.terminal import tell
from train.gain import GainRecord, Results
from train.random_streams import Stream

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv
    from envs.queries import Query
    from records.interrupt import Interrupt
    from train.config import TrainConfig
    from train.rollouts import MaskedRollouts

Choose = Callable[[NDArray[np.float32]], NDArray[np.int64]]
"""Actions (N,) for observations (N, size)."""


class SettledError(Exception):
    """The run is to end here: nothing is wrong."""


class KeptEpisodes:
    """Plays an episode of each kept query; equal ones make equal calls, which are made once.

    Args:
        queries: the kept ones.
        env: whose rules and models they are played with.
        seed: the run's.
        max_in_flight: the most requests under way at once.
    """

    def __init__(
        self, queries: Sequence[str], env: BatchedQueryMutationEnv, seed: int, max_in_flight: int
    ) -> None:
        self._queries = queries
        self._rules = env.envs[0].rules
        self._answer = env.envs[0].answerer.answer_one
        self._seed = seed
        self._max_in_flight = max_in_flight

    @property
    def mutators(self) -> tuple[str, ...]:
        """The names of the actions."""
        return tuple(mutator.name for mutator in self._rules.mutators)

    def play(self, choose: Choose) -> tuple[Results, int]:
        """The result of each query, and the steps that were taken.

        Raises:
            OllamaError: a query could not be embedded.
        """
        episodes = [
            Episode(rules=self._rules, original=query, seed=derive_seed(self._seed, "kept", query), number=0)
            for query in self._queries
        ]
        shown = dict(enumerate(self._play([episode.begin() for episode in episodes])))
        results: list[float | None] = [None] * len(episodes)
        steps = 0
        while shown:
            actions = choose(np.stack(list(shown.values())))
            taken: list[Transition] = self._play(
                [episodes[k].step(int(action)) for k, action in zip(shown, actions, strict=True)]
            )
            for k, transition in zip([*shown], taken, strict=True):
                steps += not transition.info["unscored"]
                shown[k] = transition.observation
                if transition.terminated or transition.truncated:
                    results[k] = float(transition.terminated)
                if results[k] is not None or episodes[k].attempt >= MOST_ATTEMPTS:
                    del shown[k]
        return results, steps

    def _play(self, plans: Sequence[EpisodePlan[Any]]) -> list[Any]:
        return play_plans(plans, self._answer, self._max_in_flight)


class Looks(BaseCallback):
    """Looks at the policy before a rollout where a look is due, and ends the run when that is settled.

    It comes before the callback that saves the run, so that a look that was made is saved with it; one that
    was broken off is made again, its replies from the log.

    Args:
        record: what was found so far.
        episodes: plays the kept queries.
        interrupt: allowed while they are played.
        total_steps: steps of the whole run.
    """

    def __init__(
        self, record: GainRecord, episodes: KeptEpisodes, interrupt: Interrupt, total_steps: int
    ) -> None:
        super().__init__()
        self.record = record
        self._episodes = episodes
        self._interrupt = interrupt
        self._total_steps = total_steps

    def look(self, model: MaskedRollouts, steps: int) -> None:
        """Look at the policy as it is after so many steps, unless that was done."""
        looks = self.record.looks
        if looks and looks[-1].steps == steps:
            return
        self._interrupt.allow(allowed=True)
        played = 0
        if not self.record.knows_mutators:
            mutators = self._episodes.mutators
            tell(f"kept queries: each of {len(mutators)} mutators plays them once, the policy at each look")
            fixed: dict[str, Results] = {}
            for action, name in enumerate(mutators):
                fixed[name], taken = self._play(_always(action))
                played += taken
            self.record.add_mutators(fixed)
        results, taken = self._play(model.greedy)
        self._interrupt.allow(allowed=False)
        look = self.record.add(
            results, steps=steps, kept_steps=played + taken, steps_left=self._total_steps - steps
        )
        for output in self.logger.output_formats:
            output.write(look.metrics(), {}, steps)
        tell(f"look at step {steps}: {look.text()}")

    def _play(self, choose: Choose) -> tuple[Results, int]:
        played = self._episodes.play(choose)
        self._interrupt.raise_if_due()  # its calls may have been cancelled
        return played

    def _on_rollout_start(self) -> None:
        model = cast("MaskedRollouts", self.model)
        if model.rollouts and not model.rollouts & (model.rollouts - 1):
            self.look(model, self.num_timesteps)
        if self.record.end:
            raise SettledError(self.record.end)

    def _on_step(self) -> bool:
        return True


def open_looks(
    config: TrainConfig, kept: Sequence[Query], env: BatchedQueryMutationEnv, interrupt: Interrupt
) -> Looks | None:
    """The looks of a run; None where no queries are kept."""
    if not kept:
        return None
    # The file may be sorted, and a test by betting goes by the order: chance makes one.
    stream = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(Stream.KEPT,)))
    queries = [kept[k] for k in stream.permutation(len(kept))]
    alone = config.driven_by == "sequential"
    in_flight = 1 if alone else config.max_workers or config.num_processes
    episodes = KeptEpisodes([query.text for query in queries], env, config.seed, in_flight)
    record = GainRecord([query.group for query in queries], config.gain)
    return Looks(record, episodes, interrupt, config.total_steps)


def _always(action: int) -> Choose:
    return lambda observations: np.full(len(observations), action, np.int64)
