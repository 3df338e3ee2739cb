"""The critics of `mutagym optimize`, and the mean of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Literal

from ollama_utils.encoders import Encoder
from scorers.critic import Critic, LLMCritic, RidgeCritic
from search.candidates import Llm
from train.errors import UserError
from train.roles import Roles

CriticKind = Literal["llm", "ridge", "both"]


class MeanCritic:
    """Scores by the mean of several critics, each calibrated by itself; all of them learn.

    Args:
        critics: at least one.
    """

    def __init__(self, critics: Sequence[Critic]) -> None:
        self._critics = critics

    def score(self, prompt: str, query: str, response: str) -> float:
        """What a reply is worth, 0 to 1.

        Raises:
            OllamaError: one of them has no score.
        """
        return fmean(critic.score(prompt, query, response) for critic in self._critics)

    def feedback(self, prompt: str, query: str, response: str, value: float) -> None:
        """Learn what a reply was worth.

        Raises:
            OllamaError: one of them learned nothing.
        """
        for critic in self._critics:
            critic.feedback(prompt, query, response, value)


def critics_by_name(
    kind: CriticKind, llm: Llm, roles: Roles, encoder: Encoder, seed: int, options: Mapping[str, Any]
) -> dict[str, LLMCritic | RidgeCritic]:
    """The critics of a kind.

    Args:
        kind: which.
        llm: answers the calls of a model.
        roles: whose judge is asked.
        encoder: of the regression.
        seed: of the model's calls.
        options: Ollama's for them.

    Raises:
        UserError: a model is needed, and none is named.
    """
    made: dict[str, LLMCritic | RidgeCritic] = {}
    if kind != "ridge":
        if roles.judge is None:
            raise UserError(f"--critic {kind} asks a model: name it with --judge-model, or take ridge")
        made["llm"] = LLMCritic(llm, roles.judge, seed=seed, options=options)
    if kind != "llm":
        made["ridge"] = RidgeCritic(encoder)
    return made


def calibrations(critics: dict[str, LLMCritic | RidgeCritic]) -> dict[str, dict[str, Any]]:
    """How well each critic's scores held against the feedback, raw and calibrated."""
    return {name: asdict(critic.calibration()) for name, critic in critics.items()}
