"""What came of a training run: one dictionary for machines, a few lines for people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from scorers.statistics import wilson_interval
from train.recorder import account_totals
from train.tally import Tally

if TYPE_CHECKING:
    from train.learner import Learner
    from train.recorder import Recorder
    from train.run_folder import RunFolder
    from train.server import Connection
    from train.train_query_mutator import TrainConfig

ENDS = 8
"""The start and the end of a run are its first and last eighth of rollouts."""


def summarise(
    config: TrainConfig,
    connection: Connection,
    learner: Learner,
    recorder: Recorder,
    ended: BaseException | None,
) -> dict[str, Any]:
    """The run in numbers. Rates are of episodes (success) or of scored steps (refusal); times in seconds."""
    rollouts = recorder.rollouts
    whole = sum(rollouts, Tally())
    count = max(1, len(rollouts) // ENDS)
    start, end = sum(rollouts[:count], Tally()), sum(rollouts[-count:], Tally())
    spent = account_totals(connection.dispatcher)
    return {
        "simulated": connection.simulated,
        "stopped": str(ended) if ended else None,
        "env_steps": len(rollouts) * config.num_steps * config.num_processes,
        "wall_s": round(time.monotonic() - recorder.started_s, 3),
        **_rates(start, "start"),
        **_rates(end, "end"),
        "unscored_steps": whole.unscored,
        "unscored_rate": _share(whole.unscored, whole.scored + whole.unscored),
        "schedule": config.driven_by,
        "num_processes": config.num_processes,
        "seed": config.seed,
        "target_model": connection.roles.target,
        "mutator_model": connection.roles.mutator,
        "llm_calls": int(spent["calls"]),
        "cache_hits": int(spent["cache_hits"]),
        "retries": int(spent["retries"]),
        "completion_tokens": int(spent["completion_tokens"]),
        "transitions_sha256": recorder.folder.transitions.sha256,
        "weights_sha256": learner.weights_sha256(),
    }


def _rates(tally: Tally, end: str) -> dict[str, Any]:
    """Success per episode and refusals per scored step at one end of the run, with 95 % Wilson intervals."""
    return {
        f"success_rate_{end}": _share(tally.successes, tally.episodes),
        f"success_interval_{end}": [round(x, 4) for x in wilson_interval(tally.successes, tally.episodes)],
        f"episodes_{end}": tally.episodes,
        f"refusal_rate_{end}": _share(tally.refused, tally.scored),
        f"refusal_interval_{end}": [round(x, 4) for x in wilson_interval(tally.refused, tally.scored)],
        f"scored_steps_{end}": tally.scored,
    }


def _share(part: int, whole: int) -> float | None:
    """None where there is nothing to take a share of."""
    return round(part / whole, 4) if whole else None


def print_summary(summary: dict[str, Any], folder: RunFolder) -> None:
    """Tell a person, on stdout."""
    simulated = "SIMULATED: these figures are of the embedded simulator, not of a model\n"
    lines = [
        simulated if summary["simulated"] else "",
        f"{'':14}{'first rollouts':>24}{'last rollouts':>24}\n",
        _line("success", summary, "success", "episodes"),
        _line("refusals", summary, "refusal", "scored_steps"),
        f"unscored steps: {summary['unscored_steps']} of {summary['env_steps']} · ",
        f"model calls: {summary['llm_calls']} (+ {summary['cache_hits']} from the cache) · ",
        f"{summary['wall_s']:.0f} s\n",
        f"run folder: {folder.path}\nlook at it: tensorboard --logdir {folder.path}",
    ]
    print("".join(lines))


def _line(title: str, summary: dict[str, Any], key: str, unit: str) -> str:
    cells = []
    for end in ("start", "end"):
        rate, (low, high) = summary[f"{key}_rate_{end}"], summary[f"{key}_interval_{end}"]
        cell = "-" if rate is None else f"{rate:.1%} [{low:.1%}, {high:.1%}]"
        cells.append(f"{cell:>24}")
    return f"{title:14}{''.join(cells)}   of {summary[f'{unit}_start']}, {summary[f'{unit}_end']} {unit}\n"
