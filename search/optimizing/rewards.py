"""What a candidate reply is worth: what is said of it, in parts, and their weighted sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from search.candidates import do_all
from search.optimizing.steps import Asked, Candidate, Parts, Rewarded

RewardFn = Callable[[Parts], float]
"""What the parts come to."""

FeedbackAggregator = Callable[[Sequence[float]], float]
"""What the feedback of several people on one reply comes to."""

Said = float | Sequence[float]
Signal = Said | Callable[[str, str], Said | None] | None
"""A value, or a function of query and reply that is called once the reply is there; None: nothing is said."""

Tried = tuple[Asked, Sequence[Candidate]]
"""What was asked in a step, and what came, one candidate a prompt."""


@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """A reward function: the weighted sum of the parts that are there.

    Raises:
        ValueError: a weight is not finite.
    """

    feedback: float = 1.0
    """Of the feedback, 0 to 1."""
    critic: float = 0.8
    """Of the critic's score, 0 to 1."""
    coherence: float = 0.3
    """Of the coherence, 0 to 1."""
    tokens: float = -0.001
    """Of each token."""
    safety: float = -1.0
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


@dataclass(frozen=True, kw_only=True)
class Rewarding:
    """How candidates are rewarded."""

    reward_fn: RewardFn
    aggregate: FeedbackAggregator
    feedback_for_all: bool
    """Whether a feedback function is called for each scored candidate, and not for the chosen one alone."""
    max_workers: int | None = 1
    """The most candidates that are rewarded at once; None: all. 1: one after another, in this thread."""

    def __call__(self, tried: Sequence[Tried], signals: Signals) -> list[list[Rewarded | None]]:
        """The rewards of the candidates of some steps, in order; None for a candidate without a score.

        Args:
            tried: what was asked, and what came.
            signals: what is said of the replies.

        Raises:
            ValueError: a signal is out of range, or a reward is not finite.
            Exception: whatever a signal's function raises.
        """
        cases = [
            (asked.query, candidate, place == best)
            for asked, candidates in tried
            for best in [asked.best_of(candidates)]
            for place, candidate in enumerate(candidates)
        ]
        rewarded = iter(self._each(cases, signals))
        return [[next(rewarded) for _ in candidates] for _, candidates in tried]

    def _each(self, cases: Sequence[_Case], signals: Signals) -> list[Rewarded | None]:
        def one(case: _Case) -> Rewarded | None:
            query, candidate, is_best = case
            return self._rewarded(query, candidate, signals, is_best=is_best)

        if self.max_workers == 1:  # people are asked nothing more once that failed
            return [one(case) for case in cases]
        return do_all(one, cases, self.max_workers)

    def _rewarded(
        self, query: str, candidate: Candidate, signals: Signals, *, is_best: bool
    ) -> Rewarded | None:
        text, score = candidate.text, candidate.score
        if text is None or score is None:
            return None
        asked = is_best or (self.feedback_for_all and callable(signals.human_feedback))
        feedback = signals.feedback(query, text, self.aggregate) if asked else None
        foreseen = score if feedback is None else feedback
        others = signals.parts(query, text, candidate.tokens)
        parts = {"feedback": foreseen, "critic": score, **others}
        reward = self.reward_fn(parts)
        if not math.isfinite(reward):
            raise ValueError(f"a reward must be finite; the reward function gave {reward!r} for {parts}")
        return Rewarded(reward=float(reward), parts=parts, feedback=feedback)


_Case = tuple[str, Candidate, bool]
"""A query, a reply to it, and whether that is the chosen one."""


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
