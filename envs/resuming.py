"""Going on with an episode: its state as plain data, and steps played again as transitions.jsonl tells them.

A recorded step is played by the plan of `envs/episode.py` like any other, only that the record answers its
requests. So no model is called, and a step that came to nothing comes to nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.episode import Ask, Embed, Episode, Judge, Reply, Request, Rewrite, Rules
from envs.observation import Memory
from envs.schedules import Answer
from ollama_utils.types import Completion, Usage
from scorers.reward import Verdict


def episode_state(episode: Episode) -> dict[str, Any]:
    """What `restored_episode` needs beside the rules: strings, numbers and lists of them."""
    memory = episode.memory
    return {
        "original": episode.original,
        "seed": episode.seed,
        "number": episode.number,
        "query": episode.query,
        "step_count": episode.step_count,
        "attempt": episode.attempt,
        "earlier": list(episode.earlier),
        "tried": sorted(memory.tried),
        "idle": sorted(memory.idle),
        "last_action": memory.last_action,
        "last_reward": memory.last_reward,
        "last_label": memory.last_label,
    }


def restored_episode(rules: Rules, state: Mapping[str, Any]) -> Episode:
    """The episode of a state; its embeddings come back with `Episode.recall`."""
    rest = dict(state)
    memory = Memory(
        tried=frozenset(rest.pop("tried")),
        idle=frozenset(rest.pop("idle")),
        last_action=rest.pop("last_action"),
        last_reward=rest.pop("last_reward"),
        last_label=rest.pop("last_label"),
    )
    return Episode(rules=rules, memory=memory, **{**rest, "earlier": tuple(rest["earlier"])})


def recorded(step: Mapping[str, Any], answer: Answer) -> Answer:
    """Answers the requests of one step as its line of transitions.jsonl says they were answered.

    Args:
        step: the line.
        answer: embeds texts, which the line does not hold.
    """
    unscored = step["unscored"]

    def reply(request: Request) -> Reply:
        match request:
            case Rewrite():
                # In a step that came to nothing no embedding counts; a rewrite that is cut needs none.
                cut = unscored or step["rejected"] == "cut"
                return Completion(text=step["mutated_query"], truncated=cut, usage=_usage(step))
            case Ask():
                return Completion(text=step["reply"], truncated=step["reply_truncated"])
            case Judge():
                return _verdict(step)
            case Embed():
                return np.zeros(0, np.float32) if unscored else answer([request])[0]

    return lambda requests: [reply(request) for request in requests]


def _verdict(step: Mapping[str, Any]) -> Verdict:
    return Verdict(
        outcome=step["outcome"],
        partial=step["partial"],
        intent_kept=bool(step["reward_parts"].get("intent_kept")),
        success=step["success"],
        reward=step["reward"],
        parts=step["reward_parts"],
        error=step["not_hashed"]["error_message"] if step["unscored"] else None,
    )


def _usage(step: Mapping[str, Any]) -> Usage:
    """The usage of the whole step, as if its first call had had it all."""
    times = step["not_hashed"]
    return Usage(
        prompt_tokens=step["prompt_tokens"],
        completion_tokens=step["completion_tokens"],
        decode_s=times["total_s"] - times["queue_s"],
        total_s=times["total_s"],
    )
