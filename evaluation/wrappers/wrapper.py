"""What an evaluation knows of wrappers: it hands in views, and gathers actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, get_args

from evaluation.policies.policy import PolicySource, View
from records.errors import nearest

WrapperName = Literal["serial", "auto", "thread", "process", "batch", "torch"]


class Pending(Protocol):
    """A step that was handed in."""

    def result(self) -> int:
        """The action, once it is there.

        Raises:
            PolicyTimeoutError: the step overran its deadline.
            Exception: whatever the policy raised, or a `PolicyError`: see `evaluation.wrappers.errors`.
        """
        ...


class Team(Protocol):
    """The policies of one episode's agents; used by one thread at a time."""

    def submit(self, agent: int, view: View) -> Pending:
        """Hand in an agent's view. All agents of a step are handed in first, then gathered."""
        ...

    def close(self) -> None:
        """The episode is over: drop its policies, and steps that were not gathered."""
        ...


class Wrapper(Protocol):
    """A way to step policies: one for the whole evaluation, shared by its threads."""

    def team(self, sources: Sequence[PolicySource], seeds: Sequence[int]) -> Team:
        """The policies of a new episode.

        Args:
            sources: (agents,), which policy serves each agent; the same object for the same policy.
            seeds: (agents,), at least 0: each agent's chance.

        Raises:
            WrapperError: this wrapper cannot serve one of the policies.
        """
        ...

    def close(self) -> None:
        """End its threads and processes; steps that have not begun fail."""
        ...


def make_wrapper(
    name: str, *, jobs: int, action_timeout_ms: float | None, report: Callable[[str], None]
) -> Wrapper:
    """The wrapper of this name; each gives the same actions.

    - serial: a policy steps when its action is asked for. With a deadline it does so on a thread of its own
      while the caller waits, for nothing can stop a function on the caller's thread.
    - thread: at most `jobs` threads, for all episodes together.
    - process: as many processes as jobs or CPUs, whichever is less; a policy stays in one of them.
    - batch: one call of `step_batch` for the agents of a step that have the same policy.
    - torch: one forward pass, of 16 rows a block, for agents of all episodes.
    - auto: torch or batch where a policy offers it; else the first steps are measured in place, and what they
      cost decides between thread, process and serial.

    Args:
        name: which one.
        jobs: how many steps may be under way at once, at least 1.
        action_timeout_ms: milliseconds that a step may take, counted from when the policy begins with it;
            with batch and torch, the whole call. Making an instance does not count. None: no limit.
        report: is told in a line what `auto` picks, and why; the line holds measured times.

    Raises:
        ValueError: there is no such wrapper, or a number is out of range.
    """
    if name not in get_args(WrapperName):
        raise ValueError(f"unknown policy wrapper {name!r}; {nearest(name, get_args(WrapperName))}")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs!r}")
    if action_timeout_ms is not None and not 0 < action_timeout_ms < math.inf:
        raise ValueError(
            f"the action timeout must be a finite number of ms over 0, got {action_timeout_ms!r}"
        )
    from evaluation.wrappers.making import make

    return make(name, jobs, None if action_timeout_ms is None else action_timeout_ms / 1000, report)
