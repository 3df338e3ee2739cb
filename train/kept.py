"""The queries of a run that are kept from learning, and how policies play them.

They are played with the rules and models of the run's lanes, all policies with the same seeds. What
was interrupted is played again, its replies from the log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from envs.episode import (
    LOOK,
    Episode,
    begin_together,
    derive_seed,
    label_of,
    remembered_reward,
    step_together,
)
from envs.queries import chats_of
from ollama_utils.errors import OllamaError
from ollama_utils.parallel import map_parallel
from records.errors import describe
from records.failures import FailureLimit
from train.ppo import KEPT, stream
from train.record import raise_if_cancelled

if TYPE_CHECKING:
    from train.run import TrainingRun

Floats = NDArray[np.float64]
Choose = Callable[[NDArray[np.float32]], int]
"""An action for an observation (size,)."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of the kept queries; nan where calls failed."""

    successes: Floats
    """(policies, queries): 1 where a query was answered, else 0."""
    returns: Floats
    """(policies, queries): the sum of the rewards after the look; of a query that is answered as it
    stands, that of the look."""
    steps: int
    """How many were taken."""


@dataclass(frozen=True)
class _End:
    """How an episode ended."""

    success: float = math.nan
    returned: float = math.nan
    steps: int = 0
    error: str = ""


class KeptQueries:
    """The kept queries of a run, in random order: a test by betting needs one."""

    def __init__(self, run: TrainingRun) -> None:
        config, kept, env = run.config, run.queries.kept, run.envs[0]
        order = stream(config.seed, KEPT).permutation(len(kept))
        self.queries = [kept[place] for place in order]
        self._config, self._rules = config, env.rules
        is_sequential = config.driven_by == "sequential"
        self._max_workers = 1 if is_sequential else config.max_workers or config.num_processes
        self._models = replace(env.models, chats=chats_of(kept))
        self._looks: dict[str, _End | tuple[float, str]] = {}
        """By query what came of it as it stands: its end, or the reward and label of the reply."""

    def look(self) -> NDArray[np.bool_]:
        """Ask all as they stand, unless that was done; (queries,): which ones policies play.

        Raises:
            CallCancelledError: the run was stopped meanwhile.
        """
        texts = [query.text for query in self.queries]
        if self._rules.asks_first and not self._looks:
            found = map_parallel(self._look, texts, self._max_workers)
            raise_if_cancelled(each.error for each in found if isinstance(each, _End))
            self._looks = dict(zip(texts, found, strict=True))
        return np.array([not isinstance(self._looks.get(text), _End) for text in texts])

    def play(self, choices: Sequence[Choose]) -> Played:
        """Play all queries by each choice.

        Raises:
            RunStoppedError: too many episodes could not be scored.
            CallCancelledError: the run was stopped meanwhile.
        """
        self.look()
        texts = [query.text for query in self.queries]
        pairs = list(product(choices, texts))
        ends = map_parallel(lambda pair: self._play_one(*pair), pairs, self._max_workers)
        raise_if_cancelled(end.error for end in ends)
        for first in range(0, len(ends), len(texts)):
            limit = FailureLimit(
                self._config.max_unscored, 1, what="kept queries could not be scored"
            )
            limit.add(end.error for end in ends[first : first + len(texts)])
        shape = len(choices), len(texts)
        return Played(
            successes=np.array([end.success for end in ends]).reshape(shape),
            returns=np.array([end.returned for end in ends]).reshape(shape),
            steps=sum(end.steps for end in ends),
        )

    def _look(self, query: str) -> _End | tuple[float, str]:
        """Ask a query as it stands."""
        episode = self._episode(query)
        try:
            begin_together([episode], self._models)
        except OllamaError as error:
            return _End(error=describe(error))
        while True:
            (taken,) = step_together([episode], [LOOK], self._models)
            info = taken.info
            if taken.is_over and info["unscored"]:
                return _End(error=info["error"])
            if taken.is_over:
                return _End(info["success"], info["reward"])
            if not info["unscored"]:
                return remembered_reward(info), label_of(info)

    def _play_one(self, choose: Choose, query: str) -> _End:
        """Play an episode to its end."""
        look = self._looks.get(query)
        if isinstance(look, _End):
            return look
        episode = self._episode(query)
        if look:
            episode.look_at(*look)
        try:
            (observation,) = begin_together([episode], self._models)
        except OllamaError as error:
            return _End(error=describe(error))
        returned, steps = 0.0, 0
        while True:
            (taken,) = step_together([episode], [choose(observation)], self._models)
            returned, observation = returned + taken.reward, taken.observation
            steps += not taken.info["unscored"]
            if taken.is_over and taken.info["unscored"]:
                return _End(steps=steps, error=taken.info["error"])
            if taken.is_over:
                return _End(float(taken.info["success"]), returned, steps)

    def _episode(self, query: str) -> Episode:
        seed = derive_seed(self._config.seed, "kept", query)
        return Episode(rules=self._rules, original=query, seed=seed, number=0)
