"""How fast a run would be on a server: each role alone, and a short rollout under each schedule.

A forecast is a measurement, made short: the environments of `cli/timed_rollout.py` take their first steps
with the seed, queries and actions of `mutagym bench`. What remains to be estimated is how long replies are.
So a schedule's pace is counted in tokens of replies a second, and made steps by the tokens that a step took
on the mean over the longer rollouts: the few steps of `sequential`, which is slow, may have had longer
replies or shorter ones. Where a server counts no tokens, a pace is the steps over the seconds.

As in `mutagym bench`, a server that was not started for this plays the user's lanes once beforehand, not
counted, for it may keep the prompts that it has read. Those of more lanes are not played beforehand: their
pace is, if anything, told too low.

Where calls are slow, fewer steps are played. With the fewest, one step a lane is played beforehand, and the
time goes to the user's schedule, for more different replies tell more of their length. Where even these take
too long, other schedules are left out.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cli.bench import calls_of, equal_replies, timed_rollout
from cli.timed_rollout import ClientMeter, Setting, Steps, World
from envs.answering import Answerer
from envs.episode import Ask, Judge, Rewrite
from mutators.registry import load_mutators
from ollama_utils.connect import Connection
from ollama_utils.errors import BadReplyError, OllamaError
from ollama_utils.types import Completion
from records.errors import RunStoppedError
from records.terminal import write_stderr
from scorers.statistics import known, mean_interval

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
    wanted: Setting,
    steps: int,
    *,
    is_ours: bool,
    alone: int = ALONE_STEPS,
    more: int = 0,
    most: int | None = None,
) -> list[PlannedRollout]:
    """The rollouts that are played: the warm-up, `sequential`, `phased`, `lanes`, `lanes` with more lanes.

    Args:
        wanted: lanes, workers and seed, and the user's schedule.
        steps: of each lane.
        is_ours: whether the server was started for this, and has no memory of prompts: a few steps then load
            what this process needs for a step.
        alone: steps of `sequential` in all, about.
        more: lanes that are tried, too, with about as many steps in all; no more than `wanted`: none.
        most: steps of each lane that the user wants [`steps`].
    """
    lanes, most = wanted.num_processes, most or steps
    few = min(lanes, ALONE_LANES, alone)
    own = min(most, 2 * steps - 1) if steps == FEWEST and not is_ours else steps
    by_lanes, by_phases = replace(wanted, schedule="lanes"), replace(wanted, schedule="phased")
    phased = PlannedRollout(by_phases, own if wanted.schedule == "phased" else steps)
    in_lanes = PlannedRollout(by_lanes, steps if wanted.schedule == "phased" else own)
    warm_up = (
        PlannedRollout(replace(by_lanes, num_processes=1), FEWEST)
        if is_ours
        else PlannedRollout(by_lanes, 2 * steps - own)
    )
    apart = replace(wanted, schedule="sequential", num_processes=few, max_workers=1)
    parts = [warm_up, PlannedRollout(apart, max(1, alone // few)), phased, in_lanes]
    if more > lanes:
        fewer = max(FEWEST, steps * lanes // more)
        parts.append(PlannedRollout(replace(wanted, schedule="lanes", num_processes=more), fewer))
    return parts


def most_cost(wanted: Setting, steps: int, cost: Callable[[PlannedRollout], int]) -> int:
    """The most that the rollouts of a plan cost, however many slots the server has and however slow it is."""
    plans = (plan(wanted, steps, is_ours=False, more=more) for more in range(MOST_LANES + 1))
    return max(sum(map(cost, parts)) for parts in plans)


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
    """The plan with as many steps as the time allows, though never fewer than tell anything.

    Where these take too long, more lanes and the schedules that are not the user's are left out, one by one.
    """
    alone = min(ALONE_STEPS, max(FEWEST_ALONE, int(_SHARE_ALONE * left_s / speed.step_s)))
    plans = (
        plan(wanted, fewer, is_ours=is_ours, alone=alone, more=more, most=steps)
        for fewer in range(steps, min(steps, FEWEST) - 1, -1)
    )
    for parts in plans:
        if speed.seconds(parts) <= left_s:
            return parts
    warm_up, *timed = parts
    spare = [part for part in timed if not _is_of_user(part, wanted)]
    while spare and speed.seconds([warm_up, *timed]) > left_s:
        timed.remove(spare.pop())
    return [warm_up, *timed]


def _is_of_user(part: PlannedRollout, wanted: Setting) -> bool:
    """Whether a rollout is what the user means to run; `sequential` is as fast with any number of lanes."""
    lanes = {wanted.num_processes, *([part.setting.num_processes] if wanted.schedule == "sequential" else ())}
    return part.setting.schedule == wanted.schedule and part.setting.num_processes in lanes


def play(world: World, connection: Connection, parts: Sequence[PlannedRollout]) -> list[dict[str, Any]]:
    """A row for each part but the warm-up.

    Raises:
        RunStoppedError: no step of one could be scored.
        UserError: the encoder is no good.
    """
    meter = ClientMeter(connection.dispatcher, world.models)
    by_model = {each.name for each in load_mutators(world.mission.mutators) if each.kind == "model"}
    warm_up, *timed = parts
    write_stderr(f"warming up, not counted: {warm_up.setting} ...")
    timed_rollout(world, meter, connection, *warm_up)
    rows, replies, lengths = [], [], []
    for part in timed:
        write_stderr(f"{part.setting} ...")
        row, steps = timed_rollout(world, meter, connection, *part)
        rows.append(row)
        replies.append(calls_of(steps, by_model))
        lengths.append(_lengths(steps))
    together = [row for row in rows if row["schedule"] != "sequential"] or rows
    tokens = sum(row["completion_tokens"] for row in together) / sum(row["env_steps"] for row in together)
    margin = _margin(max(lengths, key=lambda by_query: sum(map(len, by_query))))
    alone = replies[0] if rows[0]["schedule"] == "sequential" else {}
    equal = [equal_replies({} if each is alone else alone, each) for each in replies]
    return [_forecast(row, tokens) | {"margin": margin} | same for row, same in zip(rows, equal, strict=True)]


def _lengths(steps: Steps) -> list[list[int]]:
    """The tokens of each step's replies, those of one query together: they are alike."""
    by_query: defaultdict[str, list[int]] = defaultdict(list)
    for row in steps:
        for info, _ in row:
            by_query[info["original_query"]].append(info["usage"]["completion_tokens"])
    return list(by_query.values())


def _margin(by_query: Sequence[Sequence[int]]) -> float | None:
    """How far off the mean of these lengths may be, as a share of it (95 %); None: they do not tell."""
    mean, low, high = mean_interval(by_query)
    return known(max(mean - low, high - mean) / mean) if mean else None


def _forecast(row: Mapping[str, Any], tokens_per_step: float) -> dict[str, Any]:
    """What is kept of a row, its pace for replies of the usual length."""
    tokens_per_s = row["completion_tokens"] / row["wall_s"]
    pace = tokens_per_s / tokens_per_step if tokens_per_s and tokens_per_step else row["env_steps_per_s"]
    names = ("schedule", "num_processes", "env_steps", "unscored_steps", "wall_s", "cpu_ms_per_step")
    return {name: row[name] for name in names} | {
        "env_steps_per_s": pace,
        "tokens_per_s": tokens_per_s or None,
    }


def time_roles(world: World, connection: Connection) -> list[dict[str, Any]]:
    """Each role's calls one after another: rewordings by a model, answers, and a judge's verdicts.

    Returns:
        For each role its model, seconds a call, tokens of replies a second (None: not told), and how many
        calls of it a step makes on the mean: mutators are drawn alike, and those by rule call no model.

    Raises:
        OllamaError: a call failed, or all replies of a role were no good; RunStoppedError: all verdicts were.
        ValueError: the encoder is no good.
    """
    dispatcher, mission = connection.dispatcher, world.mission
    config, parts = world.parts(dispatcher)
    answerer = Answerer(
        models=config.models, dispatcher=dispatcher, encoder=parts["encoder"], scorer=parts["scorer"]
    )
    mutators = load_mutators(mission.mutators)
    by_model = [each for each in mutators if each.kind == "model"]
    queries = _cycled(world.queries, ROLES_ASKED)
    answered: list[tuple[str, Completion]] = []

    def reword(place: int, query: str) -> Completion:
        mutator = by_model[place % len(by_model)]
        return answerer.answer_one(Rewrite(mutator=mutator, query=query, earlier=(), seed=place))  # type: ignore[return-value] # of a Rewrite

    def ask(_place: int, query: str) -> Completion:
        reply: Completion = answerer.answer_one(Ask(query=query, seed=0))  # type: ignore[assignment] # of an Ask
        answered.extend([] if reply.error else [(query, reply)])
        return reply

    def judge(place: int, _query: str) -> object:
        query, reply = answered[place % len(answered)]
        return answerer.answer_one(Judge(original=query, query=query, reply=reply, similarity=1.0))

    roles: list[tuple[str, str, Callable[[int, str], object]]] = []
    if by_model:
        roles.append(("mutator", config.models.mutator, reword))
    roles.append(("target", config.models.target, ask))
    if world.judged:
        roles.append(("judge", world.roles.judge or "", judge))
    per_step = {"mutator": len(by_model) / len(mutators)}
    return [
        {"role": role, "model": model, "per_step": per_step.get(role, 1.0)}
        | _timed_calls(connection, queries, call)
        for role, model, call in roles
    ]


def _timed_calls(
    connection: Connection, queries: Sequence[str], call: Callable[[int, str], object]
) -> dict[str, Any]:
    """What one role's calls took; a reply that is no good takes as long as another."""
    before, began_s = connection.dispatcher.totals(), time.perf_counter()
    errors = []
    for place, query in enumerate(queries):
        error = getattr(call(place, query), "error", None)
        if isinstance(error, OllamaError) and not isinstance(error, BadReplyError):
            raise error
        errors += [] if error is None else [error]
    if len(errors) == len(queries):
        raise errors[0] if isinstance(errors[0], OllamaError) else RunStoppedError(str(errors[0]))
    wall_s = time.perf_counter() - began_s
    after = connection.dispatcher.totals()
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
