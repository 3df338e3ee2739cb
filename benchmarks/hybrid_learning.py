"""Does the hybrid flow learn? A learning actor, a random one and a fixed prompt, each with as many calls.

python -m benchmarks.hybrid_learning    # some ten minutes

All drive the same flow on the same training questions of the bundled task, seed by seed. What a reply is
worth is scored from the reply, as a person would say it: of the reply that the flow chose, and of no other.
Every so often the flow is frozen and answers questions that it was never trained on: one prompt and one call
each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.reporting import Check, Section, at_least, at_most, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, make_encoder
from ollama_utils.parallel import map_parallel
from scorers.comparison import Comparison, compare
from scorers.critic import LLMCritic
from search.call_pool import CallPool
from search.hybrid import ActorCriticParams, HybridOptimizationFlow
from search.optimizing.actors import Actor, FixedActor, PromptChoice, RandomActor
from search.task import SEED_INSTRUCTIONS, ask_problem, bundled_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings

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

    seeds: int = 20
    """With the first five alone the lead over the random actor was +0.080 [-0.061, +0.221] by
    seed: too wide an interval to tell."""
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
            online.append(self._worth(question, _answered(step.response)))
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
            problem.question: self._held.scorer(problem, _answered(None if reply.error else reply.text))
            for problem, reply in zip(self._held.problems, replies, strict=True)
        }


def _answered(reply: str | None) -> str:
    """The reply of a call, which must not fail here: a failed call is not a wrong answer.

    Raises:
        RuntimeError: there is none.
    """
    if reply is None:
        raise RuntimeError("a call to the simulator failed; the figures would mean nothing")
    return reply


def favourite(choice: PromptChoice) -> str:
    """The prompt that a policy likes best; of those it likes equally well the one that was drawn."""
    merits = [(odds, place in choice.places) for place, odds in enumerate(choice.probabilities)]
    return choice.prompts[merits.index(max(merits))]


BEST = "random actor, its best prompt"
"""Not one that has to be beaten: what the same calls reach where the best prompt on record answers all."""
RIVALS = {RANDOM: LEARNING, FIXED: LEARNING, BEST: LEARNING, SMALL_RANDOM: SMALL_LEARNING}
"""Who is compared with whom."""
Held = Mapping[str, float]
"""By held-out question, what the reply to it was worth."""


def sections(*, quick: bool) -> Iterator[Section]:
    """Held-out questions, learning curves, and the learning actor's lead."""
    plan = Plan(seeds=2, steps=40, encoder="hashing") if quick else Plan()
    yield report(plan, play(plan))


def report(plan: Plan, runs: Sequence[Run]) -> Section:
    """The runs as a section."""
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in ARMS}
    final = {arm: [run.held[-1] for run in by_arm[arm]] for arm in ARMS} | {
        BEST: [run.best for run in by_arm[RANDOM]]
    }
    order = (LEARNING, RANDOM, FIXED, BEST, SMALL_LEARNING, SMALL_RANDOM)
    return Section(
        title="The hybrid flow learns",
        about=_about(plan, by_arm[LEARNING]),
        rows=[_row(arm, by_arm.get(arm, []), final, plan) for arm in order],
        checks=_checks(runs, final),
    )


def leads(a: Sequence[Held], b: Sequence[Held]) -> tuple[Comparison, Comparison]:
    """How far one flow is ahead of another, paired by question, and paired by seed.

    Args:
        a: what the replies of one were worth, seed by seed.
        b: those of the other, for the same seeds and questions.
    """
    questions = sorted(set().union(*a, *b))
    by_question = ([[seed[q] for seed in each if q in seed] for q in questions] for each in (a, b))
    by_seed = ([[fmean(seed.values())] for seed in each] for each in (a, b))
    return compare(*by_question), compare(*by_seed)


def _about(plan: Plan, learning: Sequence[Run]) -> str:
    before, after = (fmean(run.calibration[part] for run in learning) for part in range(2))
    return (
        f"Share of right answers on the bundled task: {MODEL}, critic {CRITIC}, encoder {plan.encoder}, "
        f"seeds 0 to {plan.seeds - 1}, each with its own split of the questions, {plan.steps} steps of "
        f"{LARGE.num_candidates} candidates, {_numbers(LARGE)}. These numbers were chosen on other splits. "
        "*Training*: the reply that the flow chose by its critic; feedback was given on that one alone. "
        f"*Held out*: the {plan.held_out:.0%} of the questions that the flow was not trained on, one prompt "
        "and one call each: the learning actor's favourite, a random one of the population (which evolves in "
        "that flow, too), the seed prompt; and, beside these, the prompt with the best record in the random "
        "actor's population. "
        "*Lead*: how far the learning actor is ahead of this row at the end, with its 95 % interval, paired "
        "by question (seeds together) and by seed (questions together). The last two rows are of the default "
        f"numbers: {_numbers(SMALL)}. There prompts soon are much alike, and less is left to choose. Calls "
        "are those of training, to the model and to the critic, known replies among them. Feedback brought "
        f"the critic's calibration error from {before:.3f} to {after:.3f}."
    )


def _numbers(params: ActorCriticParams) -> str:
    return (
        f"{params.population_size} prompts of which {params.elite_size} are elites, "
        f"a generation every {params.update_interval} steps, learning rate {params.learning_rate:g}"
    )


def _row(arm: str, runs: Sequence[Run], final: Mapping[str, Sequence[Held]], plan: Plan) -> dict[str, Any]:
    quarter = max(1, plan.steps // 4)
    looks = [_mean(run.held[n].values() for run in runs) if runs else None for n in range(plan.looks)]
    looks.append(_mean(run.values() for run in final[arm]))
    row: dict[str, Any] = {
        "flow with": arm,
        "calls a run": round(fmean(run.calls for run in runs)) if runs else None,
        "training, first quarter": _mean(run.online[:quarter] for run in runs) if runs else None,
        "last quarter": _mean(run.online[-quarter:] for run in runs) if runs else None,
        **{f"held out, {_after(plan, n)}": share for n, share in enumerate(looks)},
    }
    if arm in RIVALS:
        by_question, by_seed = leads(final[RIVALS[arm]], final[arm])
        row["lead, by question"] = _lead(by_question)
        row["p"] = by_question.p_value
        row["lead, by seed"] = _lead(by_seed)
    return row


def _checks(runs: Sequence[Run], final: Mapping[str, Sequence[Held]]) -> list[Check]:
    leading = [
        at_least(f"lead over the {arm}, by {how}, lower end", 0.001, lead.low)
        for arm in (RANDOM, FIXED)
        for how, lead in zip(("question", "seed"), leads(final[LEARNING], final[arm]), strict=True)
    ]
    off = max(abs(size - ARMS[run.arm].population_size) for run in runs for size in run.sizes)
    calls = [run.calls for run in runs]
    return [
        *leading,
        at_most("prompts by which a population was ever too large or too small", 0, off),
        at_most("calls by which two flows differ", 0, max(calls) - min(calls)),
    ]


def _after(plan: Plan, look: int) -> str:
    return f"after {round(plan.steps * look / plan.looks)}" if look else "at first"


def _mean(shares: Iterable[Iterable[float]]) -> float:
    return fmean(share for each in shares for share in each)


def _lead(lead: Comparison) -> str:
    return f"{lead.difference:+.3f} [{lead.low:+.3f}, {lead.high:+.3f}]"


if __name__ == "__main__":
    sys.exit(run("hybrid_learning", "search.md"))
