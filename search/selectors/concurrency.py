"""How a cap on calls is shared out between combinations and their datapoints."""

from __future__ import annotations


def plan_concurrency(max_concurrent: int, batch_size: int) -> tuple[int, int]:
    """(combinations side by side, datapoints of each side by side); their product is at most the cap.

    Datapoints come first: it is better to finish one combination soon than to begin many. This is the plan
    for whole combinations; slots that it leaves over go to the next combination's datapoints all the same
    (`search.streams.play_plans`).

    Args:
        max_concurrent: the most evaluations at once.
        batch_size: how many datapoints of one combination there are to evaluate.

    Raises:
        ValueError: one of them is below 1.
    """
    for name, value in (("max_concurrent", max_concurrent), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
    datapoints = min(max_concurrent, batch_size)
    return max_concurrent // datapoints, datapoints
