"""How sure a learned policy's gain over the best fixed mutator is, and what more steps would bring.

The gain of a policy is the share of queries that it gets answered (episodes that succeed, each step its
likeliest action), less that of the best fixed mutator, over the queries there might be. It is measured on
queries kept from learning, which are a sample of those, at looks: after 1, 2, 4, 8, ... rollouts and at the
end of the run. Policy and mutators play the same queries with the same seeds, so they are compared pair by
pair.

What is claimed: with probability 95 % the interval of no look misses the gain that the policy had at that
look, whichever look the run ends at. So "beyond doubt", an interval wholly above 0, is said wrongly in 2.5 %
of the runs at most. What this rests on:

- Policies learn from other queries, so at each look the policy is given, and the differences on the kept
  queries are independent draws whose mean is its gain. Their interval is by betting (`scorers.betting`),
  which holds for any distribution on [-1, 1] and any number of them.
- Later policies do much the same on the same queries: looks are not independent, and nothing is pooled over
  them. The chance of an error is divided among the looks (`share_of_look`), whose sum bounds it.
- The best fixed mutator is not chosen, for one that only seemed to be the best is easily beaten: the gain
  over the best is the least of the gains over all, and so each end is the least of the ends. For the lower
  one this costs nothing (that of the best one must hold, whichever it is); the upper ones share their part.
- Queries of one group count as one draw, their mean.

The slope is how much the policy gained from one look to the next, by the 1,000 steps; as the best fixed
mutator stays what it is, that is the policy's own growth on the kept queries. Its intervals hold with
probability 95 % too, all together. That more steps bring what the last ones brought is a forecast, and so is
the end of a run for it: nobody knows what a learner finds next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from cyclopts.validators import Number
from numpy.typing import NDArray

from records.settings import Share
from scorers.betting import interval
from scorers.statistics import Interval

Floats = NDArray[np.float64]
Results = Sequence[float | None]
"""Of each kept query whether it was answered, 1 or 0; None: its calls failed, and nothing is known."""

ERROR = 0.05
"""How often one of a run's intervals may miss."""
EQUAL_LOOKS = 9
"""Looks that get equal shares of it; by then a run has 256 rollouts."""
LEAST = 0.05
"""The gain that is worth waiting for where none is named."""
KEPT, MOST_KEPT = 0.3, 1000
"""The share of the training queries that --until-sure keeps, and how many at most: all mutators play them."""
PER = 1000
"""Steps that a slope is told by."""
SURE = "gain beyond doubt"
HOPELESS = "forecast: the least gain is out of reach"


@Parameter(name="*", group="When to stop")
@dataclass(frozen=True, kw_only=True)
class GainConfig:
    """What more steps would bring, and when that is enough."""

    until_sure: Annotated[bool, Parameter(negative="")] | None = None
    """End the run when the policy's gain over the best fixed mutator is beyond doubt, or when --least-gain
    seems out of its reach."""
    least_gain: Share | None = None
    """The gain in success that is worth waiting for [.05, which is five points]."""
    kept: Annotated[float, Parameter(validator=Number(gte=0, lt=1))] | None = None
    """Share of the training queries kept from learning, to measure the gain on [.3 with --until-sure, of
    many queries some 1,000]."""

    def share(self, queries: int) -> float:
        """The share of so many training queries that is kept; unless it is named, not too many are."""
        if self.kept is None:
            return min(KEPT, MOST_KEPT / queries) if self.until_sure else 0.0
        return self.kept

    @property
    def least(self) -> float:
        """The gain that is worth waiting for."""
        return LEAST if self.least_gain is None else self.least_gain


def share_of_look(number: int) -> float:
    """The part of the chance of an error that a look has, from 1 on; all parts add up to 1."""
    return 0.5 ** max(0, number - EQUAL_LOOKS) / (EQUAL_LOOKS + 1)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was found at one look."""

    steps: int
    """Steps of training so far."""
    success: float
    """The share of the kept queries that the policy got answered."""
    rival: str
    """The fixed mutator that did best on them."""
    gain: Interval
    slope: Interval | None
    """Gain by 1,000 steps since the look before; None at the first."""
    kept_steps: int
    """Steps on kept queries so far, which are calls to the target."""
    unscored: int = 0
    """Kept queries of which nothing is known at this look, as calls failed: they widen the interval."""

    def at_most(self, steps: int) -> float:
        """The most that the gain may be after so many further steps if the slope stays: a forecast."""
        if not steps:
            return self.gain.high
        return self.gain.high + max(0.0, self.slope.high) * steps / PER if self.slope else math.inf

    def metrics(self) -> dict[str, float]:
        """The numbers under TensorBoard's names."""
        slope = {} if self.slope is None else _named("gain/slope", self.slope)
        return {
            **_named("gain/gain", self.gain),
            **slope,
            "gain/success": self.success,
            "gain/kept_steps": float(self.kept_steps),
            "gain/unscored": float(self.unscored),
        }

    def text(self) -> str:
        """In words, for one line."""
        said = f"gain {points(self.gain)} over {self.rival!r}, the best fixed mutator on the kept queries"
        if self.slope is not None:
            said += f"; {points(self.slope)} by {PER:,} steps of late"
        return f"{said}; {self.unscored} kept queries could not be scored" if self.unscored else said


def points(interval: Interval) -> str:
    """An interval of shares, in percentage points."""
    mean, low, high = (f"{100 * each:+.1f}" for each in interval)
    return f"{mean} points [{low}, {high}]"


class GainRecord:
    """What was found at the looks of a run.

    Args:
        groups: of each kept query its group, in an order that chance made.
        settings: the run's.
    """

    def __init__(self, groups: Sequence[str], settings: GainConfig) -> None:
        self._settings = settings
        places: dict[str, int] = {}
        self._groups = np.array([places.setdefault(group, len(places)) for group in groups], np.intp)
        """(queries,): of each the place of its group, in the order in which they come up."""
        self._queries = len(groups)
        self._fixed: dict[str, Results] = {}
        self._policy: Results | None = None
        """Those of the look before."""
        self.looks: list[Look] = []
        self.end = ""
        """Why the run is to end; empty while it is not."""

    @property
    def knows_mutators(self) -> bool:
        """Whether the fixed mutators have played."""
        return bool(self._fixed)

    def add_mutators(self, fixed: Mapping[str, Results]) -> None:
        """Take the results of each fixed mutator, which stay what they are."""
        self._fixed = dict(fixed)

    def add(self, policy: Results, *, steps: int, kept_steps: int, steps_left: int) -> Look:
        """Take the policy's results at a look; the mutators' must be there.

        Args:
            policy: the results.
            steps: steps of training so far.
            kept_steps: steps on kept queries since the look before.
            steps_left: steps of training to come.
        """
        delta = ERROR * share_of_look(len(self.looks) + 1)
        rival, gain = self._gain(policy, delta)
        before = self.looks[-1] if self.looks else None
        slope = None
        if before is not None and self._policy is not None:
            scale = PER / (steps - before.steps)
            grown = self._interval(*_differences(policy, [self._policy]), delta)
            slope = Interval(*(scale * float(each[0]) for each in grown))
        known = [each for each in policy if each is not None]
        look = Look(
            steps=steps,
            success=sum(known) / max(1, len(known)),
            rival=rival,
            gain=gain,
            slope=slope,
            kept_steps=kept_steps + (before.kept_steps if before else 0),
            unscored=len(policy) - len(known),
        )
        self.looks.append(look)
        self._policy = policy
        if self._settings.until_sure:
            self.end = self._why_to_end(look, steps_left)
        return look

    def _why_to_end(self, look: Look, steps_left: int) -> str:
        if look.gain.low > 0:
            return SURE
        hopeless = steps_left and look.at_most(steps_left) < self._settings.least
        return HOPELESS if hopeless else ""

    def _gain(self, policy: Results, delta: float) -> tuple[str, Interval]:
        """The mutator that is hardest to beat, and the gain over the best there is."""
        sure, possible = _differences(policy, list(self._fixed.values()))
        means, lows, _ = self._interval(sure, possible, delta)
        _, _, highs = self._interval(sure, possible, delta / len(self._fixed))
        rival = list(self._fixed)[int(means.argmin())]
        return rival, Interval(*(float(each.min()) for each in (means, lows, highs)))

    def _interval(self, sure: Floats, possible: Floats, delta: float) -> tuple[Floats, Floats, Floats]:
        """Means, lower and upper ends (N,) of N rows of differences (N, queries)."""
        sizes = np.bincount(self._groups)
        least, most = (
            (1 + np.stack([np.bincount(self._groups, row) / sizes for row in rows])) / 2
            for rows in (sure, possible)
        )
        lows, highs = interval(least, delta, at_best=most)
        means = (least.mean(-1) + most.mean(-1)) / 2
        return 2 * means - 1, 2 * lows - 1, 2 * highs - 1

    def summary(self) -> dict[str, Any]:
        """What the run's summary says of the gain."""
        last = self.looks[-1] if self.looks else None
        slope = last.slope if last else None
        return {
            "kept_queries": self._queries,
            "kept_steps": last.kept_steps if last else 0,
            "gain": round(last.gain.mean, 4) if last else None,
            "gain_interval": _rounded(last.gain if last else None),
            "gain_over": last.rival if last else None,
            "gain_slope": round(slope.mean, 4) if slope else None,
            "gain_slope_interval": _rounded(slope),
            "gain_looks": [
                {"env_steps": look.steps, "gain": round(look.gain.mean, 4), "interval": _rounded(look.gain)}
                for look in self.looks
            ],
            "until_sure": self.end or None,
        }

    def text(self) -> str:
        """What the run says of the gain at its end, in lines for a person."""
        if not self.looks:
            return ""
        last = self.looks[-1]
        over = f"over {last.rival!r}, the best of {len(self._fixed)} fixed mutators"
        lines = [f"gain at step {last.steps}: {points(last.gain)} {over}"]
        if last.slope:
            since = last.steps - self.looks[-2].steps
            lines.append(
                f"  by {PER:,} steps, of the last {since}: {points(last.slope)}; "
                "that more would bring as much is a forecast"
            )
        if self.end:
            lines.append(f"  ended by --until-sure: {self.end}")
        lines.append(
            f"  ({self._queries} kept queries, {last.kept_steps} steps on them; the 95 % are of all "
            f"{len(self.looks)} looks together)"
        )
        return "\n".join([*lines, ""])

    def state(self) -> dict[str, Any]:
        """All that is remembered, as plain data for `restore`."""
        return {
            "fixed": {name: list(results) for name, results in self._fixed.items()},
            "policy": None if self._policy is None else list(self._policy),
            "looks": [
                asdict(look) | {"gain": list(look.gain), "slope": look.slope and list(look.slope)}
                for look in self.looks
            ],
            "end": self.end,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another process stopped.

        Raises:
            KeyError, TypeError, ValueError: the state is not one of this run.
        """
        played = [*state["fixed"].values(), *([] if state["policy"] is None else [state["policy"]])]
        if any(len(results) != self._queries for results in played):
            raise ValueError(f"expected results of {self._queries} kept queries")
        self._fixed, self._policy, self.end = state["fixed"], state["policy"], str(state["end"])
        self.looks = [_look(**look) for look in state["looks"]]


def _look(gain: Sequence[float], slope: Sequence[float] | None, **rest: Any) -> Look:  # noqa: ANN401 - plain data
    """A look from what `asdict` made of it."""
    return Look(gain=Interval(*gain), slope=Interval(*slope) if slope else None, **rest)


def _differences(policy: Results, rivals: Sequence[Results]) -> tuple[Floats, Floats]:
    """The policy's results less each rival's (rivals, queries): at least, and at best where calls failed."""
    (worst, best), lost, won = _ends(policy), *zip(*map(_ends, rivals), strict=True)
    return worst - np.array(won), best - np.array(lost)


def _ends(results: Results) -> tuple[Floats, Floats]:
    """Results with 0 where nothing is known, and with 1."""
    low, high = (
        np.array([unknown if each is None else each for each in results], dtype=np.float64)
        for unknown in (0.0, 1.0)
    )
    return low, high


def _named(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _rounded(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(interval.low, 4), round(interval.high, 4)]
