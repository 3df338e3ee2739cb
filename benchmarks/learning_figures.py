"""Figures of several training runs: the interquartile mean, its interval, and the curves.

After Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv
2108.13264): runs are resampled within each task, so that every resample holds as many runs of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
_CUT = 0.25
"""The share of runs left out at either end."""


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the middle half along the first axis; scores (N, ...), result (...).

    With N not a multiple of four the runs at the cuts count by the part of them that is inside, so that no
    run is dropped whole for a rounding.
    """
    ordered = np.sort(scores, axis=0)
    count = len(ordered)
    inside = np.clip(np.arange(1, count + 1), count * _CUT, count * (1 - _CUT))
    weights = np.diff(inside, prepend=count * _CUT)
    return np.tensordot(weights / weights.sum(), ordered, axes=1)


def stratified_interval(
    scores: NDArray[np.float64], *, confidence: float = 0.95, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile interval of the interquartile mean over all runs of all tasks.

    Args:
        scores: (runs, tasks, ...); runs are resampled within each task.
        confidence: how much of the resamples lies inside.
        seed: of the resampling.

    Returns:
        Its lower and upper end, each of shape (...).
    """
    stream = np.random.default_rng(seed)
    runs, tasks, *rest = scores.shape
    means = []
    for _ in range(RESAMPLES):
        drawn = stream.integers(runs, size=(runs, tasks))
        sample = scores[drawn, np.arange(tasks)]
        means.append(interquartile_mean(sample.reshape(runs * tasks, *rest)))
    outside = (1 - confidence) / 2
    low, high = np.quantile(np.array(means), (outside, 1 - outside), axis=0)
    return low, high


def draw_curves(
    path: Path,
    curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    levels: Mapping[str, Mapping[str, float]],
) -> None:
    """Draw the return during training into an SVG file: one panel a task.

    Args:
        path: the file.
        curves: by task the steps (P,) and the returns (runs, P).
        levels: by task the names and heights of the lines to compare with.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "mutagym", "svg.fonttype": "none"}  # the same figure, the same file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(curves), 3.4), layout="constrained")
    for axes, (task, (steps, returns)) in zip(
        np.atleast_1d(figure.subplots(1, len(curves), sharey=True)), curves.items(), strict=True
    ):
        low, high = stratified_interval(returns[:, None])
        axes.fill_between(steps, low, high, alpha=0.3, linewidth=0)
        axes.plot(steps, interquartile_mean(returns), label="PPO (sampled, in training)")
        for style, (name, height) in zip(_styles(len(levels[task])), levels[task].items(), strict=True):
            axes.axhline(height, linestyle=style, color="0.4", linewidth=1)
            axes.annotate(name, (steps[-1], height), ha="right", va="bottom", fontsize=8)
        axes.set(title=task, xlabel="target calls", ylabel="return of an episode")
        axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def _styles(count: int) -> Sequence[str]:
    return [("--", ":", "-.")[place % 3] for place in range(count)]
