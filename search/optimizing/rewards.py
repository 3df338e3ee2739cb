"""The data of a step of the hybrid search, the critic's part in it, and what a candidate reply is worth.

A reward is the weighted sum of its parts: feedback, the critic's score, coherence, tokens, safety.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, runtime_checkable

from cyclopts import Parameter

from ollama_utils.errors import ENDS_THE_RUN, CallCancelledError, EncodingError, OllamaError
from ollama_utils.types import Call, Completion
from records.settings import Finite, without_flag
from search.optimizing.actors import PromptChoice

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
class CandidateReward:
    """A scored candidate's reward."""

    reward: float
    parts: Parts
    feedback: float | None
    """What people said of it; None: nothing, and the critic's score stands in its place."""


@dataclass(frozen=True, kw_only=True)
class AskedStep:
    """A query, and the prompts that the actor chose for it."""

    step: int
    """The number of the step, from 0."""
    query: str
    choice: PromptChoice
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
    """The candidate with the critic's highest score (`AskedStep.best_of`). Where none is scored, the first
    that came; None where all failed."""
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
        asked: AskedStep,
        candidates: Sequence[Candidate],
        rewarded: Sequence[CandidateReward | None],
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


RewardFn = Callable[[Parts], float]
"""What the parts come to."""

FeedbackAggregator = Callable[[Sequence[float]], float]
"""What the feedback of several people on one reply comes to."""

Said = float | Sequence[float]
Signal = Said | Callable[[str, str], Said | None] | None
"""A value, or a function of query and reply that is called once the reply is there; None: nothing is said."""

Tried = tuple[AskedStep, Sequence[Candidate]]
"""What was asked in a step, and what came, one candidate a prompt."""


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """A reward function: the weighted sum of the parts that are there.

    Raises:
        ValueError: a weight is not finite.
    """

    feedback: Annotated[Finite, Parameter(name="--weight-feedback")] = 1.0
    """What the scorer's judgement, 0 to 1, weighs in the reward."""
    critic: Annotated[Finite, Parameter(name="--weight-critic")] = 0.8
    """What the critic's score, 0 to 1, weighs in the reward."""
    coherence: Annotated[float, without_flag()] = 0.3
    """Of the coherence, 0 to 1."""
    tokens: Annotated[Finite, Parameter(name="--weight-tokens")] = -0.001
    """What a token weighs in the reward."""
    safety: Annotated[float, without_flag()] = -1.0
    """Of the safety penalty, a number that grows with the harm."""

    def __post_init__(self) -> None:
        for name, weight in vars(self).items():
            if not math.isfinite(weight):
                raise ValueError(f"the weight of {name} must be a finite number, got {weight!r}")

    def __call__(self, parts: Parts) -> float:
        """The reward."""
        weighted = (weight * parts[name] for name, weight in vars(self).items() if name in parts)
        return float(sum(weighted))


@dataclass(frozen=True)
class Signals:
    """What is said of a step's replies, each a value or a function of query and reply.

    A value speaks of the reply that was chosen. The other candidates' coherence, tokens and safety are taken
    to be the same; their feedback is foreseen by the critic.
    """

    human_feedback: Signal = None
    """0 to 1; a sequence where several people speak."""
    coherence: Signal = None
    """0 to 1."""
    tokens_used: Signal = None
    """Tokens of question and reply; None: what the server reported for each candidate."""
    safety_penalty: Signal = None
    """Not negative."""

    def feedback(self, query: str, reply: str, aggregate: FeedbackAggregator) -> float | None:
        """The feedback on a reply; None where there is none.

        Raises:
            ValueError: it is not from 0 to 1.
        """
        said = _said(self.human_feedback, query, reply)
        if said is None:
            return None
        value = aggregate(said) if isinstance(said, Sequence) else said
        return _checked("human_feedback", value, high=1.0)

    def parts(self, query: str, reply: str, tokens: int | None) -> dict[str, float]:
        """All parts of a reply's reward but the feedback and the critic's score.

        Args:
            query: what was asked.
            reply: what came.
            tokens: what the server reported; None where it did not.

        Raises:
            ValueError: a value is out of its range.
        """
        given = {
            "coherence": (_said(self.coherence, query, reply), 1.0),
            "tokens": (_said(self.tokens_used, query, reply), math.inf),
            "safety": (_said(self.safety_penalty, query, reply), math.inf),
        }
        if given["tokens"][0] is None:
            given["tokens"] = (tokens, math.inf)
        return {
            name: _checked(name, value, high) for name, (value, high) in given.items() if value is not None
        }


def mean(values: Sequence[float]) -> float:
    """The mean: what several people's feedback comes to unless the user says otherwise.

    Raises:
        ValueError: there is none.
    """
    if not values:
        raise ValueError("human_feedback is an empty sequence; give at least one value, or None for none")
    return sum(values) / len(values)


def _said(signal: Signal, query: str, reply: str) -> Said | None:
    return signal(query, reply) if callable(signal) else signal


def _checked(name: str, value: object, high: float) -> float:
    """A number from 0 to `high`, which may be infinity."""
    if isinstance(value, bool | int | float) and math.isfinite(value) and 0 <= value <= high:
        return float(value)
    expected = "a number from 0 to 1" if high == 1.0 else "a number that is not negative"
    raise ValueError(f"{name} must be {expected}, got {value!r}")


_log = logging.getLogger(__name__)


class Scoring(Protocol):
    """Scores replies on any thread; see `scorers/critic.py`."""

    def score(self, prompt: str, query: str, response: str) -> float:
        """What a reply is worth, 0 to 1."""
        ...


@runtime_checkable
class Learning(Protocol):
    """A critic that learns from feedback."""

    def feedback(self, prompt: str, query: str, response: str, value: float) -> None:
        """Learn what a reply was worth, 0 to 1."""
        ...


def scored(critic: Scoring, query: str, candidate: Candidate) -> Candidate:
    """The candidate with the critic's score; without one, and a warning in the log, where either failed.

    Raises:
        CallCancelledError: the run was stopped.
        ReplyLogError: a reply cannot be written down.
        OutageError, ModelChangedError: the run is over.
    """
    if candidate.text is None:
        error = candidate.completion.error if candidate.completion else "no reply came"
        _log.warning("a candidate has no score: %r", error)
        return candidate
    try:
        return given_score(candidate, critic.score(candidate.prompt, query, candidate.text))
    except ENDS_THE_RUN:
        raise
    except Exception as error:  # noqa: BLE001 - one failure spoils one candidate
        _log.warning("a candidate has no score: %r", error)
        return candidate


def given_score(candidate: Candidate, score: float | None) -> Candidate:
    """The candidate with this score; a failed one, or a score that is no finite number, has none."""
    has_score = candidate.text is not None and score is not None and math.isfinite(score)
    return replace(candidate, score=float(score) if has_score and score is not None else None)


def teach(critic: Scoring, query: str, candidate: Candidate, value: float) -> None:
    """Tell a critic that learns what a candidate was worth; where it cannot place it, nothing is learned.

    Raises:
        CallCancelledError: the run was stopped.
    """
    if candidate.text is None or not isinstance(critic, Learning):
        return
    try:
        critic.feedback(candidate.prompt, query, candidate.text, value)
    except CallCancelledError:
        raise
    except (OllamaError, EncodingError) as error:
        _log.warning("the critic learned nothing from a candidate: %r", error)
