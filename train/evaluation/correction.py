"""Rates of an evaluation corrected for a judge that errs, from its accuracy on a labelled sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scorers.correction import LabelAccuracy, corrected_rate
from scorers.statistics import wilson_interval
from train.evaluation.rates import Agent, Entry, known, rate


def corrected(entry: Entry, accuracy: LabelAccuracy) -> dict[str, Any]:
    """The refusal and the success rate of a row, corrected; None where nothing is known.

    A refused step is corrected as any label is (`scorers.correction.corrected_rate`). An episode is another
    thing: it goes on until a reply is labelled an answer, so each refused step is one more chance of a false
    success. With f the share of refusals that are taken for answers, and R the refused steps in truth, f R
    of the successes are false. The corrected rate is that of the episodes that ended with a true answer.

    Its interval is on the safe side: what the intervals of the success rate, of R and of f move it by is
    added up, for the three move together.
    """
    scored = list(entry.scored())
    steps = _clusters(scored)
    refused = corrected_rate(steps.values(), accuracy)
    refusal = dict(zip(("rate", "low", "high"), map(known, refused), strict=True))
    success = rate((query, agent["success"], 1) for query, agent in scored)
    if success["rate"] is None or refusal["rate"] is None:
        return {"refusal_corrected": refusal, "success_corrected": {**refusal, "rate": None}}
    length = sum(n for _, n in steps.values()) / success["n"]
    false = 1 - accuracy.sensitivity
    least, most = wilson_interval(round(false * accuracy.positives), accuracy.positives)
    value = success["rate"] - false * length * refused.mean
    down = success["rate"] - success["low"] + false * length * (refused.high - refused.mean)
    up = success["high"] - success["rate"] + false * length * (refused.mean - refused.low)
    low = value - down - (most - false) * length * refused.mean
    high = value + up + (false - least) * length * refused.mean
    ends = (min(1.0, max(0.0, x)) for x in (value, low, high))
    return {
        "refusal_corrected": refusal,
        "success_corrected": dict(zip(("rate", "low", "high"), ends, strict=True)),
    }


def _clusters(scored: Iterable[tuple[str, Agent]]) -> dict[str, tuple[int, int]]:
    """The refused and all scored steps of each query."""
    clusters: dict[str, tuple[int, int]] = {}
    for query, agent in scored:
        refused, steps = clusters.get(query, (0, 0))
        clusters[query] = refused + agent["refused"], steps + agent["steps"]
    return clusters
