"""The critic's part in a step: what each candidate scores, and what the critic is taught."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Protocol, runtime_checkable

from ollama_utils.errors import CallCancelledError, EncodingError, OllamaError, ReplyLogError
from search.optimizing.steps import Candidate

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
    """
    if candidate.text is None:
        error = candidate.completion.error if candidate.completion else "no reply came"
        _log.warning("a candidate has no score: %r", error)
        return candidate
    try:
        return given_score(candidate, critic.score(candidate.prompt, query, candidate.text))
    except (CallCancelledError, ReplyLogError):
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
