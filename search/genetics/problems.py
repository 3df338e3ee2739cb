"""Which problems a run uses for what: its panel, its worked examples, and those held out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from search.genetics.chance import chance
from search.genetics.config import EvolutionConfig
from search.genetics.genome import Example
from search.task import Task

_LARGEST_POOL = 5
"""At most one problem in so many is set apart for examples."""


@dataclass(frozen=True, kw_only=True)
class Problems:
    """A task's problems by use; none has two uses."""

    panel: Task
    """What every genome is scored on, in the order in which it is asked."""
    held_out: Task | None
    """What the final comparison alone sees."""
    examples: tuple[Example, ...]
    """What genomes may show."""


def divide(task: Task, config: EvolutionConfig) -> Problems:
    """The problems of a task by use; the seed alone decides which is which.

    Raises:
        ValueError: the task has too few problems for this.
    """
    train, held_out = task.split(config.held_out, config.seed) if config.held_out else (task, None)
    problems = list(train.problems)
    chance(config.seed, "problems").shuffle(problems)
    pool = min(config.example_pool, len(problems) // _LARGEST_POOL) if config.max_examples else 0
    shown = [problem for problem in problems if problem.answer is not None][:pool]
    asked = [problem for problem in problems if problem not in shown]
    if config.panel_size is not None and config.panel_size > len(asked):
        raise ValueError(
            f"panel_size is {config.panel_size!r}; expected at most {len(asked)}: the task {task.name!r} has "
            f"{len(task.problems)} problems, less those held out or set apart as examples"
        )
    return Problems(
        panel=replace(train, problems=tuple(asked[: config.panel_size])),
        held_out=held_out,
        examples=tuple(Example(problem.question, problem.answer or "") for problem in shown),
    )
