"""Tell what a server can do, and how fast a run on it would be: measured by a few hundred calls, read-only.

    mutagym doctor --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --num-processes 16
    mutagym doctor --ollama-host openai:http://127.0.0.1:8000/v1 --seconds 60
    mutagym doctor --target-model llama3.2 --mutator-model qwen3:0.6b --encoder ollama:nomic-embed-text

It looks at what the server tells (version, models and their sizes), calls the models of all roles in turn
(do they stay in memory together?), asks a few questions alone and many at once (`ollama_utils/checkup.py`:
slots, tokens a second, are equal requests answered equally?), and plays a short rollout under each schedule
(`cli/forecast.py`). The forecast is of what `mutagym bench` would measure with the same flags: as there,
every step makes a rewording and a question, one model has all roles unless more are named, and no reply is
known beforehand. A training whose mutators go by rule, or that meets known questions, is faster.

Nothing is pulled, deleted or unloaded. What will be sent is said before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from cli.advice import Advice, advise
from cli.bench import MODEL, TimedServer, timed_roles
from cli.forecast import (
    ROLES_ASKED,
    PlannedRollout,
    Speed,
    fit,
    more_lanes,
    most_cost,
    play,
    time_encoder,
    time_roles,
)
from cli.formats import new_table, number, print_parts, prints_on_stderr, write_json
from cli.timed_rollout import Setting, TimedMission, World
from envs.mission import load_query_set
from ollama_utils.checkup import (
    AT_ONCE,
    Burst,
    burst,
    burst_calls,
    check_residency,
    fewest_burst_calls,
    find_inventories,
    residency_calls,
)
from ollama_utils.connect import Connection, NoModelNamedError, connect
from ollama_utils.errors import BadReplyError, EncodingError
from ollama_utils.types import Call, short_name, think_of
from records.errors import as_user_error
from records.outputs import check_writable
from records.settings import Count, JsonPlace, Lanes, Positive, Seed
from records.terminal import one_line, write_stderr

if TYPE_CHECKING:
    from rich.table import Table

UNTOLD = "not told by this server"
QUESTIONS = 4
"""Of a burst."""
_SHORT, _SHORTEST = 64, 8
"""Most tokens of a reply in a burst, and where calls are slow."""
_SHARE_BURST = 0.25
"""Of --seconds, for a burst."""
_MODELS_SHOWN = 20
_GIB = 2**30


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """The run that is meant, and what may be spent on a forecast of it."""

    num_processes: Lanes = 16
    """Lanes."""
    schedule: Literal["sequential", "phased", "lanes"] = "lanes"
    """The schedule that is meant; all are timed."""
    max_workers: Count | None = None
    """phased: threads of a phase; lanes: the most calls in flight."""
    num_steps: Count = 8
    """Steps of each lane that are timed; fewer where calls are slow."""
    seconds: Positive = 120
    """About how long all may take, the loading of models left out."""
    seed: Seed = 0
    """Decides queries, actions and replies."""
    json: JsonPlace = None
    """Write what was found here."""
    mission: TimedMission = field(default_factory=TimedMission)
    server: TimedServer = field(default_factory=TimedServer)


def doctor(config: DoctorConfig = DoctorConfig()) -> None:
    """Tell what a server can do, how fast a run on it would be, and what would make it faster."""
    check_writable(config.json)
    with prints_on_stderr():
        report = _report(config)
    if not write_json(report, config.json):
        print_report(report)


def _report(config: DoctorConfig) -> dict[str, Any]:
    """All that is found."""
    config.mission.check()
    queries = tuple(query.text for query in load_query_set(config.mission.query_set).train)
    with _connected(config) as (connection, unnamed):
        report = look(connection)
        if unnamed is None:
            world = World(
                hosts=connection.dispatcher.hosts,
                roles=timed_roles(config.server, connection),
                queries=queries,
                mission=config.mission,
                server=config.server,
            )
            report |= _examine(config, world, connection, report)
        report["unnamed"] = unnamed
    return report


@contextmanager
def _connected(config: DoctorConfig) -> Iterator[tuple[Connection, str | None]]:
    """Within `with`: the open servers, and what to do where models are there and none is named."""
    with ExitStack() as stack:
        try:
            yield stack.enter_context(connect(config.server, memory_bytes=0, simulated_target=MODEL)), None
        except NoModelNamedError as error:
            named = replace(config.server, target_model=error.one)
            yield stack.enter_context(connect(named, memory_bytes=0)), str(error)


def look(connection: Connection) -> dict[str, Any]:
    """What the servers tell of themselves; None is what they do not tell."""
    names = dict(zip(connection.dispatcher.hosts, connection.servers, strict=False))
    found = find_inventories(connection.dispatcher, connection.available, write_stderr)
    servers = [{"host": names[host], **asdict(inventory)} for host, inventory in found.items()]
    if connection.embedded:
        servers[0]["slots"] = connection.embedded.settings.slots
    return {"simulated": connection.simulated, "servers": servers}


def _examine(
    config: DoctorConfig, world: World, connection: Connection, report: dict[str, Any]
) -> dict[str, Any]:
    """What its calls show of the servers."""
    dispatcher, encoder = connection.dispatcher, world.mission.encoder
    embedding = encoder.removeprefix("ollama:") if encoder.startswith("ollama:") else None
    announced = most_calls(config, world, embedding)
    _announce(announced, config, world, connection)
    with as_user_error(EncodingError, ValueError):
        generating = sorted(world.models)
        runner: dict[str, Any] = {"num_ctx": config.mission.num_ctx} if config.mission.num_ctx else {}
        residency = check_residency(dispatcher, generating, embedding, runner)
        began_s = time.monotonic()
        most_s = _SHARE_BURST * config.seconds
        showed = burst(dispatcher, _questions(world, connection, runner, most_s), most_s)
        slots = _slots(connection, showed)
        alone = time_roles(world, connection)
        texts_per_s = time_encoder(world, connection)
    forecast = _forecast(
        config,
        world,
        connection,
        slots=showed.slots,
        speed=_speed(alone, showed, config.num_processes),
        left_s=config.seconds - (time.monotonic() - began_s),
    )
    found = report | {
        "models": {
            "target": world.roles.target,
            "mutator": world.roles.mutator,
            "judge": world.roles.judge if world.judged else None,
            "encoder": encoder,
        },
        "residency": {
            "models": [*generating, *filter(None, [embedding])],
            "displaced": None if residency.displaced is None else sorted(residency.displaced),
            "load_s": residency.load_s,
        },
        "slots": slots,
        "burst": asdict(showed),
        "alone": alone,
        "encoder_texts_per_s": texts_per_s,
        "forecast": forecast,
        "shortened": _shortened(config, forecast),
        "calls": {"announced": announced, "sent": int(dispatcher.totals()["calls"])},
    }
    advice = advise(found, schedule=config.schedule, slots_setting=connection.slots_setting)
    return found | {"advice": [asdict(each) for each in advice]}


def _speed(alone: Sequence[Mapping[str, Any]], showed: Burst, lanes: int) -> Speed:
    """What is expected of a step; without tokens that many calls at once gain nothing."""
    full, one = showed.tokens_per_s_full, showed.tokens_per_s_alone
    gain = min(full / one, lanes) if full and one else 1.0
    return Speed(step_s=sum(row["call_s"] * row["per_step"] for row in alone), gain=max(1.0, gain))


def most_calls(config: DoctorConfig, world: World, embedding: str | None) -> int:
    """The most calls that are made; one that fails is tried again, which is not counted."""
    per_step = world.mission.most_calls_a_step + 2 * bool(embedding)

    def calls(part: PlannedRollout) -> int:
        begun = part.setting.num_processes + 1 if embedding else 0
        return part.env_steps * per_step + begun

    return (
        residency_calls(len(world.models) + bool(embedding))
        + 2  # whether a short reply has words, and a shorter one
        + burst_calls(QUESTIONS)
        + ROLES_ASKED * per_step
        + most_cost(_wanted(config), config.num_steps, calls)
    )


def _wanted(config: DoctorConfig) -> Setting:
    return Setting(
        schedule=config.schedule,
        num_processes=config.num_processes,
        max_workers=config.max_workers,
        seed=config.seed,
    )


def _announce(calls: int, config: DoctorConfig, world: World, connection: Connection) -> None:
    models = ", ".join(sorted(world.models))
    most = config.mission.num_predict
    write_stderr(
        f"will send {models} at {', '.join(connection.servers)} at most {calls} calls, with answers of at "
        f"most {most} tokens (--num-predict) and rewordings of about three times their query, in about "
        f"{config.seconds:g} s (--seconds) beside the loading of models; nothing is pulled, deleted or "
        "unloaded"
    )


def _questions(world: World, connection: Connection, runner: Mapping[str, Any], most_s: float) -> list[Call]:
    """Questions for a burst, as an environment asks them, whose replies are short where they can be.

    Of a model that thinks first, so few tokens may hold no word: then replies are as long as the run's. Where
    calls are so slow that a burst of them takes longer than `most_s`, they are shorter still.
    """
    mission = world.mission
    whole = {**runner, "temperature": 0, "seed": 0, "num_predict": mission.num_predict}
    asked = [
        Call(
            model=world.roles.target,
            prompt=query,
            system=mission.target_system,
            think=think_of(mission.think),
            options=whole,
        )
        for query in world.queries[:QUESTIONS]
    ]
    tokens = min(mission.num_predict, _SHORT)
    began_s = time.monotonic()
    first = connection.dispatcher.generate(_of_length(asked[0], tokens))
    if isinstance(first.error, BadReplyError):
        return asked
    burst_s = (time.monotonic() - began_s) * fewest_burst_calls(QUESTIONS)
    if burst_s > most_s:
        fewer = min(tokens, max(_SHORTEST, int(tokens * most_s / burst_s)))
        again = connection.dispatcher.generate(_of_length(asked[0], fewer))
        tokens = tokens if isinstance(again.error, BadReplyError) else fewer
    return [_of_length(each, tokens) for each in asked]


def _of_length(call: Call, tokens: int) -> Call:
    return replace(call, options={**call.options, "num_predict": tokens})


def _forecast(
    config: DoctorConfig,
    world: World,
    connection: Connection,
    *,
    slots: int | None,
    speed: Speed,
    left_s: float,
) -> list[dict[str, Any]]:
    """The pace of each schedule."""
    is_ours, more = connection.embedded is not None, more_lanes(slots)
    parts = fit(_wanted(config), config.num_steps, is_ours=is_ours, speed=speed, left_s=left_s, more=more)
    needed_s = speed.seconds(parts)
    longer = ", which is longer than --seconds; fewer would tell nothing" if needed_s > left_s else ""
    write_stderr(f"playing {sum(part.env_steps for part in parts)} env steps: about {needed_s:.0f} s{longer}")
    return play(world, connection, parts)


def _shortened(config: DoctorConfig, forecast: Sequence[Mapping[str, Any]]) -> str:
    """What was not played that was asked for; empty where all was."""
    together = [row for row in forecast if row["schedule"] != "sequential"]
    lanes = config.num_processes
    steps = max((row["env_steps"] // lanes for row in together if row["num_processes"] == lanes), default=0)
    fewer = f"at most {steps} of {config.num_steps} steps of each lane (--num-steps)" if together else ""
    played = {row["schedule"] for row in forecast}
    missing = [schedule for schedule in ("sequential", "phased", "lanes") if schedule not in played]
    parts = [fewer] if fewer and steps < config.num_steps else []
    parts += [f"nothing under {' and '.join(missing)}"] if missing else []
    return f"there was time for {', and '.join(parts)}: a longer --seconds tells more" if parts else ""


def _slots(connection: Connection, showed: Burst) -> list[dict[str, Any]]:
    """What a burst showed of each server."""
    names = dict(zip(connection.dispatcher.hosts, connection.servers, strict=False))
    rows = [
        {"host": names[host], "model": model, "slots": found.slots}
        for (host, model), found in connection.dispatcher.servers.capacities().items()
        if model == short_name(showed.model)
    ]
    if len(rows) == 1 and showed.slots is not None:
        rows[0]["slots"] = showed.slots
    return rows


def print_report(report: Mapping[str, Any]) -> None:
    """Print the report for people on stdout."""
    if report["simulated"]:
        print("SIMULATED: these figures are of the simulator, not of a model\n")
    for line in lines_of(report):
        print(one_line(line))
    if report["unnamed"] is None:
        print()
        print_parts(_tables(report), [report["shortened"]] if report["shortened"] else [], simulated=False)
        for line in report["advice"]:
            print(one_line(f"advice: {Advice(**line)}"))
        if not report["advice"]:
            print("advice: none; nothing that was tried is surely faster")


def lines_of(report: Mapping[str, Any]) -> Iterator[str]:
    """What was found, less the tables, a line each."""
    for server in report["servers"]:
        yield from _server_lines(server)
    if report["unnamed"] is not None:
        yield f"the rest needs a model: {report['unnamed']}"
        return
    yield "roles: " + ", ".join(f"{role} {model or '-'}" for role, model in report["models"].items())
    yield f"memory: {_memory(report['residency'])}"
    told = {server["host"] for server in report["servers"] if server["slots"]}
    for each in report["slots"]:
        said = _slots_said(each, report["burst"]["at_once"])
        how = "told by the server" if each["host"] in told else "measured"
        yield f"slots: {each['model']} at {each['host']}: {said}{f', {how}' if each['slots'] else ''}"
    shown = report["burst"]
    alone, full = (_number(shown[f"tokens_per_s_{each}"]) for each in ("alone", "full"))
    yield f"tokens/s: {alone} alone, {full} with up to {shown['at_once']} calls at once"
    yield (
        f"equal requests: {shown['equal_alone']} of {shown['asked_alone']} got equal replies alone, "
        f"{shown['equal_full']} of {shown['asked_full']} with so many at once"
        if shown["asked_alone"]
        else "equal requests: not known, for no reply of the burst had words"
    )
    yield f"encoder: {report['models']['encoder']}, {report['encoder_texts_per_s']:.3g} texts/s"


def _server_lines(server: Mapping[str, Any]) -> Iterator[str]:
    yield f"server {server['host']}: reachable, version {server['version'] or UNTOLD}"
    for name, title in (("pulled", "models"), ("loaded", "in memory")):
        models = server[name]
        yield f"  {title}: {UNTOLD if models is None else _models(models) or 'none'}"


def _models(models: Mapping[str, int | None]) -> str:
    shown = [f"{name} ({size / _GIB:.2g} GiB)" if size else name for name, size in models.items()]
    more = len(shown) - _MODELS_SHOWN
    return ", ".join(shown[:_MODELS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _memory(residency: Mapping[str, Any]) -> str:
    models, displaced = residency["models"], residency["displaced"]
    if len(models) == 1:
        return f"{models[0]} has all roles"
    if displaced is None:
        return f"whether {', '.join(models)} stay loaded together: {UNTOLD}"
    if not displaced:
        return f"{', '.join(models)} stay loaded together"
    return (
        f"{', '.join(models)} do NOT stay loaded together: {', '.join(displaced)} had to leave for the "
        f"others (a load took up to {residency['load_s']:.2g} s)"
    )


def _slots_said(each: Mapping[str, Any], at_once: int) -> str:
    slots = each["slots"]
    if slots is None:
        more = "; a longer --seconds asks more at once" if at_once < AT_ONCE[-1] else ""
        return f"not known: of {at_once} calls at once none was seen to wait{more}"
    return f"serves {slots} {'call' if slots == 1 else 'calls'} at once"


def _number(value: float | None) -> str:
    return UNTOLD if value is None else f"{value:.3g}"


FORECAST = (
    "As `mutagym bench` would measure it with these flags: each step a rewording and an answer, and no reply "
    "known beforehand. Played: steps that this was measured on. CPU: this machine's for a step. Equal: "
    "replies to equal calls that were those of sequential. ±: how far off the mean length of replies, and "
    "with it all steps/s alike, may be in so few steps (95 %)."
)
ALONE = "One call after another; tokens of replies."


def _tables(report: Mapping[str, Any]) -> Iterator[tuple[list[Table], str]]:
    alone = new_table("Each role, alone", "role", "model", "s a call", "tokens/s", names=2)
    for row in report["alone"]:
        speeds = number(row["call_s"], "{:.3g}"), number(row["tokens_per_s"], "{:.3g}")
        alone.add_row(row["role"], row["model"], *speeds)
    yield [alone], ALONE
    table = new_table(
        "Forecast", "schedule", "lanes", "played", "steps/s", "±", "gain", "tokens/s", "CPU ms", "equal"
    )
    paces = {row["schedule"]: row["env_steps_per_s"] for row in report["forecast"]}
    base = paces.get("sequential")
    for row in report["forecast"]:
        table.add_row(
            row["schedule"],
            str(row["num_processes"] if row["schedule"] != "sequential" else "any"),
            str(row["env_steps"]),
            number(row["env_steps_per_s"], "{:.3g}"),
            number(None if row["margin"] is None else 100 * row["margin"], "{:.0f} %"),
            number(base and row["env_steps_per_s"] / base, "{:.2f}"),
            number(row["tokens_per_s"], "{:.3g}"),
            number(row["cpu_ms_per_step"], "{:.1f}"),
            "-"
            if row["equal_replies"] is None
            else f"{int(100 * row['equal_replies'])} % of {row['compared_replies']}",
        )
    yield [table], FORECAST
