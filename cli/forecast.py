"""How fast a run would be on a server: each role alone, and a short rollout under each schedule.

A forecast is a measurement, made short: the environments of `cli/timed_rollout.py` take their first steps
with the seed, queries and actions of `mutagym bench`. What remains to be estimated is how long replies are.
So a schedule's pace is counted in tokens of replies a second, and made steps by the tokens that a step took
on the mean over the longer rollouts: the few steps of `sequential`, which is slow, may have had longer
replies or shorter ones. Where a server counts no tokens, a pace is the steps over the seconds.

As in `mutagym bench`, a server that was not started for this plays the user's lanes once beforehand, not
counted, for it may keep the prompts that it has read. Those of more lanes are not played beforehand: their
pace is, if anything, told too low.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

from cli.bench import calls_of, equal_replies, timed_rollout
from cli.timed_rollout import ClientMeter, Setting, World
from envs.answering import Answerer
from envs.episode import Ask, Judge, Rewrite
from mutators.registry import load_mutators
from ollama_utils.connect import Connection
from ollama_utils.dispatcher import account_totals
from ollama_utils.types import Completion
from records.errors import RunStoppedError
from records.terminal import tell

FEWEST = 2
"""Steps of each lane: with one, no lane would be ahead of another."""
ALONE_LANES, ALONE_STEPS, FEWEST_ALONE = 16, 32, 4
"""Of `sequential`, at most and at least: its pace does not depend on the number of lanes."""
MOST_LANES = 64
"""No more are tried than these, or the user's."""
_LANES_PER_SLOT = 2
_SHARE_ALONE = 0.25
"""Of the time that is left, for `sequential`."""
ROLES_ASKED = 4
"""Queries that each role is timed with."""
TEXTS = 32
"""Texts that the encoder is timed with, in one request."""


class PlannedRollout(NamedTuple):
    """A rollout that is played."""

    setting: Setting
    steps: int
    """Of each lane."""

    @property
    def env_steps(self) -> int:
        """Of all lanes."""
        return self.setting.num_processes * self.steps


def plan(
    wanted: Setting, steps: int, *, is_ours: bool, alone: int = ALONE_STEPS, more: int = 0
) -> list[PlannedRollout]:
    """The rollouts that are played: the warm-up, `sequential`, `phased`, `lanes`, `lanes` with more lanes.

    Args:
        wanted: lanes, workers and seed.
        steps: of each lane.
        is_ours: whether the server was started for this, and has no memory of prompts: a few steps then load
            what this process needs for a step.
        alone: steps of `sequential` in all, about.
        more: lanes that are tried, too, with about as many steps in all; no more than `wanted`: none.
    """
    lanes = wanted.num_processes
    few = min(lanes, ALONE_LANES, alone)
    phased, in_lanes = (
        PlannedRollout(replace(wanted, schedule=schedule), steps) for schedule in ("phased", "lanes")
    )
    warm_up = (
        PlannedRollout(replace(wanted, schedule="lanes", num_processes=1), FEWEST) if is_ours else in_lanes
    )
    apart = replace(wanted, schedule="sequential", num_processes=few, max_workers=1)
    parts = [warm_up, PlannedRollout(apart, max(1, alone // few)), phased, in_lanes]
    if more > lanes:
        fewer = max(FEWEST, ceil(steps * lanes / more))
        parts.append(PlannedRollout(replace(wanted, schedule="lanes", num_processes=more), fewer))
    return parts


def more_lanes(slots: int | None) -> int:
    """How many lanes keep so many slots busy."""
    return min(MOST_LANES, _LANES_PER_SLOT * (slots or 0))


class Speed(NamedTuple):
    """What is known before a rollout of how long it takes."""

    step_s: float
    """Of a step whose calls are alone."""
    gain: float
    """How many times as fast they are with all lanes at work."""

    def seconds(self, parts: Sequence[PlannedRollout]) -> float:
        """About how long the rollouts take."""
        gains = {"sequential": 1.0}
        return sum(
            self.step_s * part.env_steps / gains.get(part.setting.schedule, self.gain) for part in parts
        )


def fit(
    wanted: Setting, steps: int, *, is_ours: bool, speed: Speed, left_s: float, more: int
) -> list[PlannedRollout]:
    """The plan with as many steps as the time allows, though never fewer than tell anything."""
    alone = min(ALONE_STEPS, max(FEWEST_ALONE, int(_SHARE_ALONE * left_s / speed.step_s)))
    plans = (
        plan(wanted, fewer, is_ours=is_ours, alone=alone, more=more)
        for fewer in range(steps, min(steps, FEWEST) - 1, -1)
    )
    for parts in plans:
        if speed.seconds(parts) <= left_s:
            break
    return parts


def play(world: World, connection: Connection, parts: Sequence[PlannedRollout]) -> list[dict[str, Any]]:
    """A row for each part but the warm-up.

    Raises:
        RunStoppedError: no step of one could be scored.
        UserError: the encoder is no good.
    """
    meter = ClientMeter(connection.dispatcher, world.models)
    by_model = {each.name for each in load_mutators(world.mission.mutators) if each.kind == "model"}
    warm_up, *timed = parts
    tell(f"warming up, not counted: {warm_up.setting} ...")
    timed_rollout(world, meter, connection, *warm_up)
    rows, replies = [], []
    for part in timed:
        tell(f"{part.setting} ...")
        row, steps = timed_rollout(world, meter, connection, *part)
        rows.append(row)
        replies.append(calls_of(steps, by_model))
    together = rows[1:]
    tokens = sum(row["completion_tokens"] for row in together) / sum(row["env_steps"] for row in together)
    equal = [equal_replies({}, {}), *(equal_replies(replies[0], each) for each in replies[1:])]
    return [_forecast(row, tokens) | same for row, same in zip(rows, equal, strict=True)]


def _forecast(row: Mapping[str, Any], tokens_per_step: float) -> dict[str, Any]:
    """What is kept of a row, its pace for replies of the usual length."""
    tokens_per_s = row["completion_tokens"] / row["wall_s"]
    pace = tokens_per_s / tokens_per_step if tokens_per_s and tokens_per_step else row["env_steps_per_s"]
    names = ("schedule", "num_processes", "env_steps", "unscored_steps", "wall_s", "cpu_ms_per_step")
    return {name: row[name] for name in names} | {
        "env_steps_per_s": round(pace, 3),
        "tokens_per_s": round(tokens_per_s, 2) or None,
    }


def time_roles(world: World, connection: Connection) -> list[dict[str, Any]]:
    """Each role's calls one after another: rewordings by a model, answers, and a judge's verdicts.

    Returns:
        For each role its model, seconds a call, and tokens of replies a second (None: not told).

    Raises:
        OllamaError: a call failed; RunStoppedError: a judge's did.
        ValueError: the encoder is no good.
    """
    dispatcher, mission = connection.dispatcher, world.mission
    config, parts = world.parts(dispatcher)
    answerer = Answerer(
        models=config.models, dispatcher=dispatcher, encoder=parts["encoder"], scorer=parts["scorer"]
    )
    by_model = [each for each in load_mutators(mission.mutators) if each.kind == "model"]
    queries = _cycled(world.queries, ROLES_ASKED)
    answers: list[Completion] = []

    def reword(place: int, query: str) -> Completion:
        mutator = by_model[place % len(by_model)]
        return answerer.answer_one(Rewrite(mutator=mutator, query=query, earlier=(), seed=place))  # type: ignore[return-value] # of a Rewrite

    def ask(_place: int, query: str) -> Completion:
        answers.append(answerer.answer_one(Ask(query=query, seed=0)))  # type: ignore[arg-type] # of an Ask
        return answers[-1]

    def judge(place: int, query: str) -> object:
        return answerer.answer_one(Judge(original=query, query=query, reply=answers[place], similarity=1.0))

    roles: list[tuple[str, str, Callable[[int, str], object]]] = []
    if by_model:
        roles.append(("mutator", config.models.mutator, reword))
    roles.append(("target", config.models.target, ask))
    if world.judged:
        roles.append(("judge", world.roles.judge or "", judge))
    return [
        {"role": role, "model": model, **_timed_calls(connection, queries, call)}
        for role, model, call in roles
    ]


def _timed_calls(
    connection: Connection, queries: Sequence[str], call: Callable[[int, str], object]
) -> dict[str, Any]:
    before, began_s = account_totals(connection.dispatcher), time.perf_counter()
    for place, query in enumerate(queries):
        error = getattr(call(place, query), "error", None)
        if error is not None:
            raise error if isinstance(error, Exception) else RunStoppedError(str(error))
    wall_s = time.perf_counter() - began_s
    after = account_totals(connection.dispatcher)
    tokens = after["completion_tokens"] - before["completion_tokens"]
    return {"call_s": wall_s / len(queries), "tokens_per_s": tokens / wall_s if tokens else None}


def time_encoder(world: World, connection: Connection) -> float:
    """Texts a second, many in one request.

    Raises:
        OllamaError: a call failed.
        ValueError: the encoder is no good, or fails at a text.
    """
    encoder = world.parts(connection.dispatcher)[1]["encoder"]
    texts = [f"{query} ({place})" for place, query in enumerate(_cycled(world.queries, TEXTS))]
    began_s = time.perf_counter()
    encoder.encode(texts)
    return len(texts) / (time.perf_counter() - began_s)


def _cycled(queries: Sequence[str], number: int) -> list[str]:
    return [queries[place % len(queries)] for place in range(number)]
