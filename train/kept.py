"""Plays the kept queries at the looks of a run: its policy, and each mutator alone (`train.gain`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from envs.episode import MOST_ATTEMPTS, Episode, EpisodePlan, Transition, derive_seed
from ollama_utils.plans import play_plans
from records.failures import check_failed_share
from records.terminal import write_stderr
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
        max_unscored: the share of queries that may be left without a result, as their calls failed.
    """

    def __init__(
        self,
        queries: Sequence[str],
        env: BatchedQueryMutationEnv,
        seed: int,
        max_in_flight: int,
        max_unscored: float,
    ) -> None:
        self._queries = queries
        self._rules = env.envs[0].rules
        self._answer = env.envs[0].answerer.answer_one
        self._seed = seed
        self._max_in_flight = max_in_flight
        self._max_unscored = max_unscored

    @property
    def mutators(self) -> tuple[str, ...]:
        """The names of the actions."""
        return tuple(mutator.name for mutator in self._rules.mutators)

    def play(self, choose: Choose) -> tuple[Results, int]:
        """The result of each query, and the steps that were taken.

        Raises:
            OllamaError: a query could not be embedded.
            RunStoppedError: too few of the queries have a result.
        """
        episodes = [
            Episode(rules=self._rules, original=query, seed=derive_seed(self._seed, "kept", query), number=0)
            for query in self._queries
        ]
        shown = dict(enumerate(self._play([episode.begin() for episode in episodes])))
        results: list[float | None] = [None] * len(episodes)
        given_up: list[str] = []
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
                elif transition.info["permanent"] or episodes[k].attempt >= MOST_ATTEMPTS:
                    given_up.append(transition.info["error"])
                else:
                    continue
                del shown[k]
        what = "kept queries could not be scored"
        check_failed_share(given_up, len(episodes), self._max_unscored, what=what, flag="--max-unscored")
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
        name: of the run, where there are several.
    """

    def __init__(
        self,
        record: GainRecord,
        episodes: KeptEpisodes,
        interrupt: Interrupt,
        total_steps: int,
        name: str = "",
    ) -> None:
        super().__init__()
        self.record = record
        self._episodes = episodes
        self._interrupt = interrupt
        self._total_steps = total_steps
        self._prefix = f"{name}: " if name else ""

    def look(self, model: MaskedRollouts, steps: int) -> None:
        """Look at the policy as it is after so many steps, unless that was done.

        Raises:
            RunStoppedError: too few of its episodes could be scored; nothing is recorded.
        """
        looks = self.record.looks
        if looks and looks[-1].steps == steps:
            return
        self._interrupt.allow(allowed=True)
        played = 0
        if not self.record.knows_mutators:
            mutators = self._episodes.mutators
            each = f"each of {len(mutators)} mutators plays them once, the policy at each look"
            write_stderr(f"{self._prefix}kept queries: {each}")
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
        write_stderr(f"{self._prefix}look at step {steps}: {look.text()}")

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
    config: TrainConfig,
    kept: Sequence[Query],
    env: BatchedQueryMutationEnv,
    interrupt: Interrupt,
    name: str = "",
) -> Looks | None:
    """The looks of a run, which is called `name` where there are several; None where no queries are kept."""
    if not kept:
        return None
    # The file may be sorted, and a test by betting goes by the order: chance makes one.
    stream = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(Stream.KEPT,)))
    queries = [kept[k] for k in stream.permutation(len(kept))]
    alone = config.driven_by == "sequential"
    in_flight = 1 if alone else config.max_workers or config.num_processes
    texts = [query.text for query in queries]
    episodes = KeptEpisodes(texts, env, config.seed, in_flight, config.max_unscored)
    record = GainRecord([query.group for query in queries], config.gain)
    return Looks(record, episodes, interrupt, config.total_steps, name)


def _always(action: int) -> Choose:
    return lambda observations: np.full(len(observations), action, np.int64)
