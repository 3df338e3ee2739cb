"""What a selector says of each combination when its search is over, and how sure it is of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from search.selectors.selector import Selector

UNSEEN = "not seen"
FAILS = "fails too often"
OPEN = "not distinguished from the best"
_SHOWN = 4
"""Equals that are told by name."""


def verdicts_of(selector: Selector, named: int | None) -> list[str]:
    """For each combination, in the order of their numbers, what is known of it beside the named one."""
    fit, survivors, ended = selector.fit_ones, set(selector.survivors), _last_rounds(selector)
    worse = _worse(selector, named)
    told = []
    for number in range(len(selector.combinations)):
        if number == named:
            told.append(_filled(selector, selector.named_is))
        elif not selector.cells.seen[number]:
            told.append(UNSEEN)
        elif not fit[number]:
            told.append(FAILS)
        elif number not in survivors:
            told.append(f"{_filled(selector, selector.out_is)} (round {ended.get(number, 0) + 1})")
        elif worse[number] and named is not None:
            last = max(selector.last_asked[number], selector.last_asked[named])
            told.append(f"ruled out (round {last})")
        else:
            told.append(OPEN)
    return told


def claim_of(selector: Selector, named: int | None) -> str:
    """What a selector claims with its settings, and who scored the same as the named one."""
    if named is None:
        return "None of them can be named."
    claim = _filled(selector, selector.claim)
    size, cells = len(selector.datapoints), selector.cells
    if cells.seen[named] < size:
        return claim
    equal = selector.fit_ones & (cells.seen == size) & (cells.means() == cells.mean(named))
    others = [number for number in np.flatnonzero(equal).tolist() if number != named]
    if not others:
        return claim
    labels = [selector.combinations[number].label for number in (named, *others)]
    if len(labels) > _SHOWN:
        labels = [*labels[: _SHOWN - 1], f"{len(labels) - _SHOWN + 1} others"]
    told = f"{', '.join(labels[:-1])} and {labels[-1]}"
    return f"{claim} {told} have the same score on all {size} datapoints; the first is named."


def why_none(selector: Selector) -> str:
    """Why no combination can be named, in one line."""
    cells = selector.cells
    seen = np.flatnonzero(cells.seen)
    if not len(seen):
        return "no combination was evaluated"
    least = int(seen[(cells.errors[seen] / cells.seen[seen]).argmin()])
    return (
        f"each one evaluated failed on more than {selector.max_errors:.0%} of its datapoints; the "
        f"least, {selector.combinations[least].label}, on {cells.errors[least]} of {cells.seen[least]}, "
        f"first with {cells.first_error.get(least)!r}"
    )


def _filled(selector: Selector, text: str) -> str:
    return text.format(selector, wrong=f"{100 * selector.delta:g} %")


def _worse(selector: Selector, named: int | None) -> NDArray[np.bool_]:
    """(combinations,), who is worse than the named one, both seen on the whole dataset."""
    cells, size = selector.cells, len(selector.datapoints)
    if named is None or cells.seen[named] < size:
        return np.zeros(len(cells.seen), dtype=np.bool_)
    worse: NDArray[np.bool_] = (cells.seen == size) & (cells.means() < cells.mean(named))
    return worse


def _last_rounds(selector: Selector) -> dict[int, int]:
    """The last round after which each combination might still be named."""
    last: dict[int, int] = {}
    for played in reversed(selector.rounds):
        for number in played.survivors:
            last.setdefault(number, played.number)
    return last
