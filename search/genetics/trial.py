"""A genome on the panel of problems: what it scored, problem by problem, and when that is enough.

All genomes are put the same problems in the same order, so two of them are compared problem by problem. A
genome that is surely worse than its rival is stopped. A call that failed has no score: it is never a 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from ollama_utils.types import Call
from search.genetics.genome import Genome
from search.genetics.plans import Asking, CallPlan, asked_twice
from search.selectors.confidence import PairedTest
from search.task import Problem, Scorer


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The problems that all genomes of a run are put."""

    problems: tuple[Problem, ...]
    """In the order in which they are asked."""
    scorer: Scorer
    """What a reply is worth, 0 to 1; called on several threads at once."""
    ask: Callable[[Problem, str], Call]
    """The call that puts a problem under a system prompt."""
    batch_size: int
    """After so many problems it is judged whether to stop."""
    batches_at_once: int = 1
    """Batches that are asked together; what was asked past the end of a genome is left out."""
    max_unscored: float = 0.1
    """A genome with a larger share of its problems unscored has no fitness."""
    hopeless: float | None = 0.05
    """The chance of stopping a genome that is no worse than its rival; None never stops one."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What a genome scored."""

    genome: Genome
    scores: tuple[float | None, ...]
    """By problem of the panel; None where it has none."""
    fitness: float | None
    """The mean score; None where too many problems are unscored. Of a stopped genome: its rival's, and the
    mean difference to it on the problems both have."""
    stopped: bool
    """Whether it was surely worse than its rival before all problems were asked."""
    unscored: int
    """How many problems were asked without getting a reply."""
    asked: int
    """How many problems were asked, those unscored too."""
    error: str = field(default="", compare=False)
    """Why the last unscored problem got no reply; "" where none is."""

    @property
    def is_complete(self) -> bool:
        """Whether its fitness is its own score on the whole panel."""
        return self.fitness is not None and not self.stopped


class Trial:
    """A genome under evaluation.

    Args:
        genome: what is tried.
        panel: on what.
        rival: what it must not be surely worse than; None lets it finish.
    """

    def __init__(self, genome: Genome, panel: Panel, rival: Evaluated | None = None) -> None:
        self.genome = genome
        self.is_over = not panel.problems
        self._panel, self._rival = panel, rival
        self._scores: list[float | None] = []
        self._stopped = False
        self._error = ""
        self._worse = PairedTest(population=max(1, len(panel.problems)))

    def go_on(self) -> CallPlan[None]:
        """Ask the next batches, and judge after each; all that are left where no judgement can end it."""
        panel, begun = self._panel, len(self._scores)
        end = begun + panel.batch_size * panel.batches_at_once if self._may_stop else None
        problems = panel.problems[begun:end]
        prompt = self.genome.prompt
        answers = yield from asked_twice(
            [Asking(panel.ask(problem, prompt), partial(panel.scorer, problem)) for problem in problems]
        )
        errors = [answer.completion.error for answer in answers]
        self._error = next((str(error) for error in reversed(errors) if error), self._error)
        scores = [answer.score for answer in answers]
        while scores and not self.is_over:
            self._take(scores[: panel.batch_size])
            scores = scores[panel.batch_size :]

    def result(self) -> Evaluated:
        """What the genome scored so far."""
        scores, unscored = self._scores, self._scores.count(None)
        scored = [score for score in scores if score is not None]
        fitness = fmean(scored) if scored and not self._is_unscored(len(scores)) else None
        if fitness is not None and self._stopped:
            fitness = self._estimate()
        missing = (None,) * (len(self._panel.problems) - len(scores))
        return Evaluated(
            genome=self.genome,
            scores=(*scores, *missing),
            fitness=fitness,
            stopped=self._stopped,
            unscored=unscored,
            asked=len(scores),
            error=self._error,
        )

    def _take(self, scores: list[float | None]) -> None:
        """Add a batch, and judge whether it was the last."""
        begun = len(self._scores)
        self._scores += scores
        total = len(self._panel.problems)
        finished = len(self._scores) == total
        self._stopped = not finished and self._is_hopeless(_differences(scores, self._rival, begun))
        self.is_over = finished or self._stopped or self._is_unscored(total)

    @property
    def _may_stop(self) -> bool:
        """Whether it is held against a rival."""
        return self._rival is not None and self._panel.hopeless is not None

    def _is_hopeless(self, differences: list[float]) -> bool:
        """Whether it is surely worse than its rival, given further differences to it."""
        if not self._may_stop or self._panel.hopeless is None:
            return False
        self._worse.add([-difference for difference in differences])
        return bool(self._worse.rejects(self._panel.hopeless))

    def _is_unscored(self, of: int) -> bool:
        return self._scores.count(None) > self._panel.max_unscored * of

    def _estimate(self) -> float:
        """The rival's fitness, and the mean difference to it on the problems that both have."""
        if self._rival is None or self._rival.fitness is None:
            raise RuntimeError("only a genome with a rival can be stopped")
        mean = fmean(_differences(self._scores, self._rival))
        return min(1.0, max(0.0, self._rival.fitness + mean))


def _differences(scores: Sequence[float | None], rival: Evaluated | None, begun: int = 0) -> list[float]:
    """These scores, from problem `begun` on, less the rival's, where both have one."""
    pairs = zip(scores, rival.scores[begun:] if rival else (), strict=False)
    return [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
