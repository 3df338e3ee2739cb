"""Does the hybrid flow learn? A learning actor beside a random one, in the same flow.

python -m benchmarks.hybrid_learning

Both drive the same flow on the same training questions of the bundled task, seed by seed. Feedback
is given on the flow's response alone, as by a person. Now and then the flow answers questions that
it was never trained on, one prompt and one call each, and learns nothing from them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.reporting import Section, at_least, run
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import make_encoder
from ollama_utils.parallel import map_parallel
from scorers.judge import LLMCritic
from scorers.statistics import student_interval
from search.chance import chance
from search.optimize import ActorCriticParams, HybridOptimizationFlow
from search.task import SEED_INSTRUCTIONS, bundled_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings

PARAMS = ActorCriticParams(parallel_eval=True)
"""All numbers are the default ones."""
LEARNING, RANDOM = "learning actor", "random actor"
MODEL, MUTATOR, CRITIC = "sim-solver", "sim-mutator", "sim-judge"
SLOTS = 16
RUNS_AT_ONCE = 4
HELD_OUT = 0.3
FIRST_SPLIT = 100
"""The split of the first seed, each seed has its own; numbers were chosen on splits below."""
QUARTERS = 4


@dataclass(frozen=True, kw_only=True)
class Run:
    """One flow of one seed: shares of right answers."""

    training: list[float]
    """Of the responses in each quarter of the steps."""
    held_out: list[float]
    """At first and after each quarter, each question under the actor's favourite prompt."""
    best: float
    """At the end, all questions under the prompt with the best record."""
    seed_prompt: float
    """All questions under the seed prompt."""
    calls: int
    """To the model, the critic and the mutator in training, known replies among them."""


def train(arm: str, seed: int, steps: int, host: str) -> Run:
    """Train a flow, and look at it now and then; a pure function of its seed."""
    task, held_out = bundled_task().split(HELD_OUT, FIRST_SPLIT + seed)
    problems = {problem.question: problem for problem in task.problems}
    order: list[str] = []
    while len(order) < steps:
        questions = list(problems)
        chance(seed, len(order)).shuffle(questions)
        order += questions
    with Dispatcher([host], max_in_flight=SLOTS) as dispatcher, Dispatcher([host]) as other:
        flow = HybridOptimizationFlow(
            dispatcher,
            PARAMS,
            model=MODEL,
            mutator_model=MUTATOR,
            encoder=make_encoder("hashing"),
            critics=[LLMCritic(dispatcher, CRITIC)],
            seed=seed,
            learning_rate=0.0 if arm == RANDOM else PARAMS.learning_rate,
        )

        def solved(prompts: list[str]) -> float:
            scores = []
            for problem, prompt in zip(held_out.problems, prompts, strict=True):
                reply = other.generate(flow.final_call(problem.question, prompt))
                if reply.error:
                    raise reply.error
                scores.append(held_out.scorer(problem, reply.text))
            return fmean(scores)

        def favourites() -> list[str]:
            return [flow.best_prompt(problem.question) for problem in held_out.problems]

        def feedback(query: str, reply: str) -> float:
            return task.scorer(problems[query], reply)

        training, looks, quarter = [], [solved(favourites())], steps // QUARTERS
        for k in range(QUARTERS):
            results = [flow.step(each, feedback) for each in order[k * quarter : (k + 1) * quarter]]
            training.append(fmean(each.best.feedback or 0.0 for each in results if each.best))
            looks.append(solved(favourites()))
        totals = dispatcher.totals()
        return Run(
            training=training,
            held_out=looks,
            best=solved([flow.population.members[0].prompt] * len(held_out.problems)),
            seed_prompt=solved([SEED_INSTRUCTIONS] * len(held_out.problems)),
            calls=int(totals["calls"] + totals["cache_hits"]),
        )


def lead(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """How far one share is ahead of another, and the ends of Student's interval, paired by seed."""
    differences = np.array(a) - np.array(b)
    return float(differences.mean()), *student_interval([differences[None]])


def sections(*, quick: bool) -> Iterator[Section]:
    """Shares of right answers in training and on held-out questions, and who leads."""
    seeds, steps = (2, 40) if quick else (20, 400)
    with EmbeddedServer(Settings(slots=SLOTS, time_scale=0)) as server:
        jobs = list(product((LEARNING, RANDOM), range(seeds)))
        runs = map_parallel(lambda job: train(*job, steps, server.host), jobs, RUNS_AT_ONCE)
    learning, others = runs[:seeds], runs[seeds:]
    final = [each.held_out[-1] for each in learning]
    rivals = {
        RANDOM: [each.held_out[-1] for each in others],
        f"{RANDOM}, its best prompt": [each.best for each in others],
        f"{LEARNING}, its best prompt": [each.best for each in learning],
        "seed prompt": [each.seed_prompt for each in learning],
    }
    rows = [row(LEARNING, learning), row(RANDOM, others)]
    rows += [{"flow with": name} for name in list(rivals)[1:]]
    for each, shares in zip(rows[1:], rivals.values(), strict=True):
        ahead, low, high = lead(final, shares)
        each["held out, last"] = fmean(shares)
        each["lead over it"] = f"{ahead:+.3f} [{low:+.3f}, {high:+.3f}]"
    yield Section(
        title="The hybrid flow learns",
        about=(
            f"Share of right answers on the bundled task: {MODEL}, critic {CRITIC}, mutator "
            f"{MUTATOR}, encoder hashing, {seeds} seeds, each with its own split of the questions, "
            f"{steps} steps of {PARAMS.num_candidates} candidates, all numbers the default ones. "
            "*Training*: the response, on which alone feedback was given. *Held out*: the "
            f"{HELD_OUT:.0%} of the questions that the flow was not trained on, one prompt and one "
            "call each: the learning actor's favourite, a random one of the population (which "
            "evolves in that flow, too). *Lead*: of the learning actor at the end, with its 95 % "
            "interval by seed. Calls are those of training, known replies among them."
        ),
        rows=rows,
        checks=[
            at_least(f"lead over the {name}, lower end", 0.001, lead(final, rivals[name])[1])
            for name in (RANDOM, "seed prompt")
        ],
    )


def row(arm: str, runs: list[Run]) -> dict[str, Any]:
    """The means over the seeds."""
    names = ["at first", *(f"quarter {k}" for k in range(1, QUARTERS)), "last"]
    return {
        "flow with": arm,
        "calls a run": round(fmean(each.calls for each in runs)),
        "training, first quarter": fmean(each.training[0] for each in runs),
        "training, last": fmean(each.training[-1] for each in runs),
        **{
            f"held out, {name}": fmean(each.held_out[k] for each in runs)
            for k, name in enumerate(names)
        },
    }


if __name__ == "__main__":
    sys.exit(run("hybrid_learning", "search.md"))
