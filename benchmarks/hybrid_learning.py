"""Does the hybrid flow learn? A learning actor, a random one and a fixed prompt, each with as many calls.

    python -m benchmarks.hybrid_learning                # to stdout: a few minutes
    python -m benchmarks.hybrid_learning --seeds 10

The figures are of questions that no flow was trained on, and of the way there; `benchmarks/hybrid_runs.py`
makes the runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.hybrid_runs import (
    ARMS,
    CRITIC,
    FIXED,
    LARGE,
    LEARNING,
    MODEL,
    RANDOM,
    SMALL,
    SMALL_LEARNING,
    SMALL_RANDOM,
    Plan,
    Run,
    play,
)
from benchmarks.tables import Check, Section, at_least, at_most
from scorers.comparison import Comparison, compare
from search.optimizing.params import ActorCriticParams

BEST = "random actor, its best prompt"
"""Not one that is to be beaten: what the same calls come to where the best prompt on record answers all."""
RIVALS = {RANDOM: LEARNING, FIXED: LEARNING, BEST: LEARNING, SMALL_RANDOM: SMALL_LEARNING}
"""Who is compared with whom."""
Held = Mapping[str, float]
"""By held-out question, what the reply to it was worth."""


def section(seeds: int = Plan.seeds) -> Section:
    """The section of the report: held-out questions, learning curves, and the learning actor's lead."""
    plan = Plan(seeds=seeds)
    return report(plan, play(plan))


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
        columns={
            "arm": "flow with",
            "calls": "calls a run",
            "online_first": "training, first quarter",
            "online_last": "last quarter",
            **{f"look_{n}": f"held out, {_after(plan, n)}" for n in range(plan.looks + 1)},
            "by_question": "lead, by question",
            "p_value": "p",
            "by_seed": "lead, by seed",
        },
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
        f"the critic's calibration error from {before:.3f} to {after:.3f}. "
        "`python -m benchmarks.hybrid_learning`"
    )


def _numbers(params: ActorCriticParams) -> str:
    return (
        f"{params.population_size} prompts of which {params.elite_size} are elites, "
        f"a generation every {params.update_interval} steps, learning rate {params.learning_rate:g}"
    )


def _row(arm: str, runs: Sequence[Run], final: Mapping[str, Sequence[Held]], plan: Plan) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": arm, f"look_{plan.looks}": _mean(run.values() for run in final[arm])}
    if runs:
        quarter = max(1, plan.steps // 4)
        row |= {
            "calls": round(fmean(run.calls for run in runs)),
            "online_first": _mean(run.online[:quarter] for run in runs),
            "online_last": _mean(run.online[-quarter:] for run in runs),
            **{f"look_{n}": _mean(run.held[n].values() for run in runs) for n in range(plan.looks + 1)},
        }
    if arm in RIVALS:
        by_question, by_seed = leads(final[RIVALS[arm]], final[arm])
        row |= {
            "by_question": _lead(by_question),
            "p_value": by_question.p_value,
            "by_seed": _lead(by_seed),
        }
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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the section; the exit status is 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hybrid_learning", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=Plan.seeds, help="so many runs of each flow")
    found = section(parser.parse_args(argv).seeds)
    print(found.markdown())
    return 0 if all(check.met for check in found.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
