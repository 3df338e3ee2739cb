"""A failure that may pass is met with more attempts, and pauses between them that double, with jitter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from ollama_utils.errand import Errand
from ollama_utils.errors import OllamaError

T = TypeVar("T")

_MAX_BACKOFF_S = 30.0


class Attempts:
    """How often a call is tried, and when it is given up.

    Args:
        most: how often at most.
        backoff_s: seconds before the second attempt.

    Raises:
        ValueError: `most` is less than 1.
    """

    def __init__(self, most: int, backoff_s: float) -> None:
        if most < 1:
            raise ValueError(f"attempts must be at least 1, got {most!r}")
        self._most = most
        self._retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, OllamaError) and error.retryable),
            stop=self._is_over,
            wait=wait_exponential_jitter(multiplier=backoff_s, jitter=backoff_s, max=_MAX_BACKOFF_S),
            reraise=True,
        )

    def insist(self, errand: Errand, attempt: Callable[[Errand], T]) -> T:
        """What an attempt gives, after as many as it may take; the errand counts them.

        Raises:
            OllamaError: why the last of them failed.
        """
        try:
            return attempt(errand)
        except OllamaError as error:
            failed = [error]

        def again(errand: Errand) -> T:
            """The attempt that failed already, and then the others: only now is tenacity worth its time."""
            if failed:
                raise failed.pop()
            return attempt(errand)

        answer: T = self._retrying.copy(sleep=errand.pause)(again, errand)
        return answer

    def _is_over(self, state: RetryCallState) -> bool:
        """Whether a call that failed is given up."""
        errand: Errand = state.args[0]
        return len(errand.hosts) >= self._most or errand.is_late(state.upcoming_sleep)
