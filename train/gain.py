"""How sure a learned policy's gain over the best fixed mutator is, and what more steps would bring.

The gain is the share of all possible queries that the policy gets answered, each step its likeliest
action, less that of the best fixed mutator. It is measured on queries kept from learning, at looks:
after 1, 2, 4, 8, ... rollouts and at the end. All play the same queries with the same seeds and are
compared pair by pair.

With probability 95 % no look's interval misses the gain that the policy had then, whichever look
the run ends at; one wholly above 0 is wrong in 2.5 % of the runs at most:

- The policy learned from other queries, so its differences on the kept ones are independent draws
  with its gain as mean; queries of one group are one draw, their mean. The interval is by betting
  (`scorers.betting`): it holds for any distribution on [-1, 1] and any number of draws.
- Looks are not independent. So the chance of an error is divided among them (`share_of_look`).
- A mutator that only seemed to be the best is easily beaten. So no best one is chosen: the gain is
  the least of the gains over all, and each end the least of the ends. The lower ends need no
  correction (that of the best one must hold, whichever it is); the upper ones share their part.

The slope is how much the policy gained from one look to the next, per 1,000 steps; its intervals
hold with probability 95 %, all together. That more steps bring as much is a forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from records.metrics import MetricsWriter
from records.terminal import write_stderr
from scorers.betting import interval
from scorers.statistics import Interval
from train.config import GainConfig
from train.kept import KeptQueries
from train.summary import PER, look_text

if TYPE_CHECKING:
    from train.ppo import LanePPO
    from train.run import TrainingRun

Floats = NDArray[np.float64]
Results = Floats
"""(queries,): 1 for each kept query that was answered, 0 for others; NaN: its calls failed."""
ERROR = 0.05
"""The probability that any of a run's intervals misses the true gain."""
EQUAL_LOOKS = 9
"""So many first looks have equal shares of ERROR; the last of them comes after 256 rollouts."""
SURE = "gain beyond doubt"
HOPELESS = "forecast: the least gain is out of reach"


def share_of_look(number: int) -> float:
    """A look's part of the chance of an error, the first being look 1; all parts add up to 1."""
    return 0.5 ** max(0, number - EQUAL_LOOKS) / (EQUAL_LOOKS + 1)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was found at one look."""

    steps: int
    """Steps of training so far."""
    results: Results
    rival: str
    """The fixed mutator that did best."""
    gain: Interval
    slope: Interval | None
    """Gain per 1,000 steps since the look before; None at the first."""
    kept_steps: int
    """Steps on kept queries so far."""

    @property
    def unscored(self) -> int:
        """Kept queries that could not be scored."""
        return int(np.isnan(self.results).sum())

    def metrics(self) -> dict[str, float]:
        """The numbers under TensorBoard's names."""
        found = {
            "gain/success": float(np.nansum(self.results))
            / max(1, len(self.results) - self.unscored),
            "gain/kept_steps": self.kept_steps,
            "gain/unscored": self.unscored,
        }
        for name, each in (("gain/gain", self.gain), ("gain/slope", self.slope)):
            if each is not None:
                found |= {name: each.mean, f"{name}_low": each.low, f"{name}_high": each.high}
        return found


class GainRecord:
    """What was found at the looks of a run, given the groups of kept queries in random order."""

    def __init__(self, groups: Sequence[str], settings: GainConfig) -> None:
        self._settings = settings
        places = {group: place for place, group in enumerate(dict.fromkeys(groups))}
        self._of_group = np.eye(len(places))[[places[group] for group in groups]]
        """(queries, groups): 1 where the query is of the group."""
        self.fixed: dict[str, Results] = {}
        """The results of each fixed mutator, by name; set before the first look."""
        self.looks: list[Look] = []
        self.end = ""
        """Why the run is to end, or empty."""

    def add(self, results: Results, *, steps: int, kept_steps: int, steps_left: int) -> Look:
        """Add a look: the policy's results after so many steps, with so many left to come."""
        delta = ERROR * share_of_look(len(self.looks) + 1)
        rivals = np.stack(list(self.fixed.values()))
        means, lows, _ = self._intervals(results, rivals, delta)
        _, _, highs = self._intervals(results, rivals, delta / len(rivals))
        slope = None
        if self.looks:
            before = self.looks[-1]
            grown = self._intervals(results, before.results[None], delta)
            scale = PER / (steps - before.steps)
            slope = Interval(*(scale * float(each[0]) for each in grown))
        look = Look(
            steps=steps,
            results=results,
            rival=list(self.fixed)[int(means.argmin())],
            gain=Interval(float(means.min()), float(lows.min()), float(highs.min())),
            slope=slope,
            kept_steps=kept_steps,
        )
        self.looks.append(look)
        self.end = self._end(look, steps_left) if self._settings.until_sure else ""
        return look

    def _end(self, look: Look, steps_left: int) -> str:
        """Why the run is to end after this look, or empty."""
        if look.gain.low > 0:
            return SURE
        if not look.slope or not steps_left:
            return ""
        highest = look.gain.high + max(0.0, look.slope.high) * steps_left / PER
        return HOPELESS if highest < self._settings.least else ""

    def _intervals(
        self, results: Results, rivals: Floats, delta: float
    ) -> tuple[Floats, Floats, Floats]:
        """Means, lower and upper ends (N,) of the gains over N rivals (N, queries)."""
        least = np.nan_to_num(results, nan=0) - np.nan_to_num(rivals, nan=1)
        most = np.nan_to_num(results, nan=1) - np.nan_to_num(rivals, nan=0)
        sizes = self._of_group.sum(axis=0)
        least, most = ((1 + each @ self._of_group / sizes) / 2 for each in (least, most))
        (lows, _), (_, highs) = interval(least, delta), interval(most, delta)
        means = (least.mean(axis=1) + most.mean(axis=1)) / 2
        return 2 * means - 1, 2 * lows - 1, 2 * highs - 1

    def summary(self) -> dict[str, Any]:
        """What the run's summary says of the gain."""
        last = self.looks[-1] if self.looks else None
        return {
            "kept_queries": len(self._of_group),
            "kept_steps": last.kept_steps if last else 0,
            "kept_unscored": last.unscored if last else 0,
            "gain": _mean(last.gain) if last else None,
            "gain_interval": _ends(last.gain) if last else None,
            "gain_over": last.rival if last else None,
            "gain_slope": _mean(last.slope) if last and last.slope else None,
            "gain_slope_interval": _ends(last.slope) if last and last.slope else None,
            "gain_looks": [
                {"env_steps": look.steps, "gain": _mean(look.gain), "interval": _ends(look.gain)}
                for look in self.looks
            ],
            "until_sure": self.end or None,
        }

    def state(self) -> dict[str, Any]:
        """Plain data for `restore`."""
        fixed = {name: results.tolist() for name, results in self.fixed.items()}
        looks = [(look.results.tolist(), look.steps, look.kept_steps) for look in self.looks]
        return {"fixed": fixed, "looks": looks}

    def restore(self, state: Mapping[str, Any], total_steps: int) -> None:
        """Go on from a state in a run of so many steps, which may be more than it had before."""
        self.fixed = {name: np.array(results) for name, results in state["fixed"].items()}
        for results, steps, kept_steps in state["looks"]:
            left = total_steps - steps
            self.add(np.array(results), steps=steps, kept_steps=kept_steps, steps_left=left)


class Looks:
    """The looks at a run's kept queries."""

    def __init__(self, run: TrainingRun, kept: KeptQueries, metrics: MetricsWriter) -> None:
        self.record = GainRecord([query.group for query in kept.queries], run.config.gain)
        self._config, self._rules, self._metrics = run.config, run.envs[0].rules, metrics
        self._kept, self._prefix = kept, run.prefix

    def is_due(self, rollouts: int) -> bool:
        """Whether there is a look after so many rollouts: 1, 2, 4, 8, ..."""
        return rollouts.bit_count() == 1

    def look(self, model: LanePPO) -> None:
        """Look at the policy, unless that was done; at the first look each mutator plays, too.

        Raises:
            RunStoppedError: too many episodes could not be scored.
            CallCancelledError: the run was stopped meanwhile.
        """
        record, steps = self.record, model.num_timesteps
        if record.looks and record.looks[-1].steps == steps:
            return
        names = [] if record.fixed else [mutator.name for mutator in self._rules.mutators]
        if names:
            plays = f"each of {len(names)} mutators plays them once, the policy at each look"
            write_stderr(f"{self._prefix}kept queries: {plays}")
        fixed = [partial(_always, action) for action in range(len(names))]
        played = self._kept.play([*fixed, model.greedy])
        results, kept_steps = played.successes, played.steps
        record.fixed = record.fixed or dict(zip(names, results, strict=False))
        kept_steps += record.looks[-1].kept_steps if record.looks else 0
        left = self._config.total_steps - steps
        look = record.add(results[-1], steps=steps, kept_steps=kept_steps, steps_left=left)
        self._metrics.write(steps, look.metrics())
        write_stderr(f"{self._prefix}{look_text(record.summary())}")


def _always(action: int, _observation: NDArray[np.float32]) -> int:
    return action


def _mean(interval: Interval) -> float:
    return round(interval.mean, 4)


def _ends(interval: Interval) -> list[float]:
    return [round(interval.low, 4), round(interval.high, 4)]
