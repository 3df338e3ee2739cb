"""What goes into a step of the hybrid search and what comes out: plain, frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ollama_utils.types import Call, Completion
from search.optimizing.actors import Choice

Parts = Mapping[str, float]
"""By name: `feedback`, `critic`, `coherence`, `tokens`, `safety`; a part that nobody gave is not there."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One prompt's reply, and the critic's score of it."""

    prompt: str
    completion: Completion | None
    """What came; None where a driver brought no reply."""
    score: float | None = None
    """0 to 1; None where there is no reply, or the critic had no score: then it teaches nothing."""

    @property
    def text(self) -> str | None:
        """The reply; None where the call failed."""
        return None if self.completion is None or self.completion.error else self.completion.text

    @property
    def tokens(self) -> int | None:
        """Tokens of question and reply as the server reported them; None where it did not."""
        usage = self.completion.usage if self.completion else None
        return None if usage is None else usage.prompt_tokens + usage.completion_tokens


@dataclass(frozen=True, kw_only=True)
class Rewarded:
    """A scored candidate's reward."""

    reward: float
    parts: Parts
    feedback: float | None
    """What people said of it; None: nothing, and the critic's score stands in its place."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A query, and the prompts that the actor chose for it."""

    step: int
    """The number of the step, from 0."""
    query: str
    choice: Choice
    """How the actor chose; it learns from it later."""
    calls: tuple[Call, ...]
    """One a prompt: what the flow asks the model. Another driver may get its replies as it likes."""

    @property
    def prompts(self) -> tuple[str, ...]:
        """The system prompts to try, in the order drawn."""
        return self.choice.chosen

    def best_of(self, candidates: Sequence[Candidate]) -> int | None:
        """The place of the highest score; of equal ones that of the likeliest prompt, then the first."""
        odds = [self.choice.probabilities[place] for place in self.choice.places]
        merits = [(each.score, odds[i], -i) for i, each in enumerate(candidates) if each.score is not None]
        return -max(merits)[2] if merits else None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step came to. K prompts were tried; each tuple has an item for each of them, in order."""

    step: int
    query: str
    response: str | None
    """The candidate with the critic's highest score (`Asked.best_of`). Where none is scored, the first that
    came; None where all failed."""
    prompt: str | None
    """The system prompt of the response."""
    reward: float | None
    """Of the response; None where it has no score: nothing was learned from the step."""
    parts: Parts
    """What that reward is made of; empty where there is none."""
    feedback: float | None
    """What people said of the response; None: nothing, and the part `feedback` was foreseen by the critic."""
    prompts: tuple[str, ...]
    candidates: tuple[str | None, ...]
    """The replies; None where the call failed."""
    scores: tuple[float | None, ...]
    """The critic's; None where the candidate is unscored."""
    rewards: tuple[float | None, ...]
    completions: tuple[Completion | None, ...]
    """The replies with their errors and usage."""
    evolved: bool
    """Whether the population went on to its next generation after this step."""

    @property
    def unscored(self) -> int:
        """How many candidates have no score: they failed, or the critic did."""
        return self.scores.count(None)

    @classmethod
    def of(
        cls,
        asked: Asked,
        candidates: Sequence[Candidate],
        rewarded: Sequence[Rewarded | None],
        best: int | None,
        *,
        evolved: bool,
    ) -> StepResult:
        """The result of a step.

        Args:
            asked: what was asked.
            candidates: what came.
            rewarded: what each was worth.
            best: the place of the one that was chosen; None where none has a score.
            evolved: whether the population evolved after it.
        """
        reward = None if best is None else rewarded[best]
        came = [place for place, each in enumerate(candidates) if each.text is not None]
        shown = candidates[came[0] if best is None else best] if came else None
        return cls(
            step=asked.step,
            query=asked.query,
            response=shown.text if shown else None,
            prompt=shown.prompt if shown else None,
            reward=reward.reward if reward else None,
            parts=reward.parts if reward else {},
            feedback=reward.feedback if reward else None,
            prompts=asked.prompts,
            candidates=tuple(each.text for each in candidates),
            scores=tuple(each.score for each in candidates),
            rewards=tuple(None if each is None else each.reward for each in rewarded),
            completions=tuple(each.completion for each in candidates),
            evolved=evolved,
        )
