"""Runs of the hybrid flow for `benchmarks.hybrid_learning`: a learning actor, a random one, a fixed prompt.

All drive the same flow on the same training questions of the bundled task, seed by seed. What a reply is
worth is scored from the reply, as a person would say it: of the reply that the flow chose, and of no other.
Every so often the flow is frozen and answers questions that it was never trained on: one prompt and one call
each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder
from ollama_utils.parallel import map_parallel
from ollama_utils.simulator.process import EmbeddedServer
from ollama_utils.simulator.settings import Settings
from scorers.critic import LLMCritic
from search.call_pool import CallPool
from search.hybrid import HybridOptimizationFlow
from search.optimizing.actors import Actor, Choice, FixedActor, RandomActor
from search.optimizing.params import ActorCriticParams
from search.task import SEED_INSTRUCTIONS, ask_problem, bundled_task

SMALL = ActorCriticParams(parallel_eval=True)
"""All numbers as they are unless the user says otherwise: 10 prompts, 5 candidates."""
LARGE = replace(SMALL, population_size=20, elite_size=4, update_interval=40, learning_rate=6.0)
"""Room for prompts that suit different kinds of questions, and time to find out which suits which."""
LEARNING, RANDOM, FIXED = "learning actor", "random actor", "fixed prompt"
SMALL_LEARNING, SMALL_RANDOM = "learning actor, 10 prompts", "random actor, 10 prompts"
ARMS = {LEARNING: LARGE, RANDOM: LARGE, FIXED: LARGE, SMALL_LEARNING: SMALL, SMALL_RANDOM: SMALL}
MODEL, CRITIC = "sim-solver", "sim-judge"
SLOTS = 16
RUNS_AT_ONCE = 4
_PROBE = 1_000_000
"""Keys the draws on held-out questions, apart from those of all steps."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is trained, and how often it is looked at."""

    seeds: int = 5
    steps: int = 400
    looks: int = 4
    """How often the held-out questions are answered, evenly spaced, the last time at the end; and once before
    the first step."""
    held_out: float = 0.3
    first_split: int = 100
    """The seed of the first run's split; each seed has its own. The numbers of `LARGE` were chosen on the
    splits 0 to 24."""
    encoder: str = "all-MiniLM-L6-v2"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One flow, from its first step to its last."""

    arm: str
    seed: int
    online: Sequence[float]
    """Of each step: what the reply that the flow chose was worth."""
    held: Sequence[Mapping[str, float]]
    """Of each look at the held-out questions: what the reply to each of them was worth."""
    best: Mapping[str, float]
    """The same at the end, under the prompt with the best record alone."""
    calls: int
    """Calls in training, to the model and to the critic."""
    sizes: frozenset[int]
    """Of the population, after each step."""
    calibration: tuple[float, float]
    """The critic's calibration error, before and after it is calibrated."""


def play(plan: Plan) -> list[Run]:
    """All runs, by seed and arm; on a simulator of their own, each a pure function of its seed."""
    encoder = make_encoder(plan.encoder)
    with (
        EmbeddedServer(Settings(slots=SLOTS, time_scale=0)) as server,
        Dispatcher([server.host], max_in_flight=SLOTS) as dispatcher,
    ):
        return map_parallel(
            lambda job: _Trainer(plan, dispatcher, encoder, *job).run(),
            list(product(range(plan.seeds), ARMS)),
            RUNS_AT_ONCE,
        )


class _Trainer:
    """Trains one flow and looks at it."""

    def __init__(self, plan: Plan, dispatcher: Dispatcher, encoder: Encoder, seed: int, arm: str) -> None:
        self._plan, self._seed, self._arm, self._dispatcher = plan, seed, arm, dispatcher
        self._train, self._held = bundled_task().split(plan.held_out, plan.first_split + seed)
        self._problems = {problem.question: problem for problem in self._train.problems}
        self._pool = CallPool(dispatcher, SLOTS)
        params = replace(ARMS[arm], seed=seed)
        others: dict[str, Actor] = {RANDOM: RandomActor(seed), FIXED: FixedActor(SEED_INSTRUCTIONS)}
        others[SMALL_RANDOM] = others[RANDOM]
        self._critic = LLMCritic(self._pool, CRITIC)
        self._flow = HybridOptimizationFlow.from_params(
            params, self._pool, model=MODEL, encoder=encoder, critic=self._critic, actor=others.get(arm)
        )

    def run(self) -> Run:
        """Every step, and the looks between."""
        looks = {round(self._plan.steps * n / self._plan.looks) for n in range(self._plan.looks + 1)}
        online, held, sizes = [], [self._look()], set()
        for done, question in enumerate(self._questions(), 1):
            step = self._flow.step(question, self._worth)
            online.append(self._worth(question, _there(step.response)))
            sizes.add(len(self._flow.population.prompts))
            if done in looks:
                held.append(self._look())
        calibration = self._critic.calibration()
        return Run(
            arm=self._arm,
            seed=self._seed,
            online=online,
            held=held,
            best=self._answer([self._flow.population.best.prompt] * len(self._held.problems)),
            calls=self._pool.counts().calls,
            sizes=frozenset(sizes),
            calibration=(calibration.error_raw, calibration.error),
        )

    def _questions(self) -> list[str]:
        """The training questions, each as often as any other, in an order that is the seed's."""
        chance, asked = np.random.default_rng((self._seed, 0)), list(self._problems)
        rounds = -(-self._plan.steps // len(asked))
        return [asked[i] for _ in range(rounds) for i in chance.permutation(len(asked))][: self._plan.steps]

    def _worth(self, question: str, reply: str) -> float:
        """The feedback: what a reply to a training question is worth."""
        return self._train.scorer(self._problems[question], reply)

    def _look(self) -> dict[str, float]:
        """What the replies to the held-out questions are worth; nothing is learned from them."""
        prompts = self._flow.population.prompts
        choices = [
            self._flow.actor.choose(problem.question, prompts, 1, _PROBE + number)
            for number, problem in enumerate(self._held.problems)
        ]
        return self._answer([favourite(choice) for choice in choices])

    def _answer(self, prompts: Sequence[str]) -> dict[str, float]:
        """What the replies to the held-out questions are worth, each under its prompt."""
        asked = zip(self._held.problems, prompts, strict=True)
        calls = [ask_problem(problem, prompt, model=MODEL) for problem, prompt in asked]
        replies = map_parallel(self._dispatcher.generate, calls)
        return {
            problem.question: self._held.scorer(problem, _there(None if reply.error else reply.text))
            for problem, reply in zip(self._held.problems, replies, strict=True)
        }


def _there(reply: str | None) -> str:
    """A reply; no call fails here, and one that did would be no wrong answer."""
    if reply is None:
        raise RuntimeError("a call to the simulator failed; what was measured means nothing")
    return reply


def favourite(choice: Choice) -> str:
    """The prompt that a policy likes best; of those it likes equally well the one that was drawn."""
    merits = [(odds, place in choice.places) for place, odds in enumerate(choice.probabilities)]
    return choice.prompts[merits.index(max(merits))]
