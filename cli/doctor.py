"""Tell what a server can do, measured by some dozens of calls, read-only, and what would make it faster.

    mutagym doctor --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --num-processes 16
    mutagym doctor --ollama-host openai:http://127.0.0.1:8000/v1 --seconds 10
    mutagym doctor --target-model llama3.2 --mutator-model qwen3:0.6b --encoder ollama:nomic-embed-text

It looks at what the server tells (version, models and their sizes), calls the models of all roles in turn
(do they stay in memory together?), asks a few questions alone and many at once (`ollama_utils/checkup.py`:
slots, tokens a second, are equal requests answered equally?), and times each role alone. How fast a run is
under each schedule, `mutagym bench` measures with the same flags.

Nothing is pulled, deleted or unloaded. What will be sent is said before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from cli.bench import MODEL, TimedServer, timed_roles
from cli.formats import new_table, number, print_parts, prints_on_stderr, write_json
from cli.timed_rollout import TimedMission, World
from envs.models import Ask, ModelCalls, Rewrite
from envs.query_mutation import QueryMutationEnv
from envs.query_sets import load_query_set
from mutators.registry import load_mutators
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
from ollama_utils.errors import BadReplyError, EncodingError, OllamaError
from ollama_utils.monitor import ADVISED_SLOTS
from ollama_utils.types import Call, Completion, short_name
from records.errors import RunStoppedError, as_user_error
from records.outputs import check_writable
from records.settings import JsonPlace, Lanes, Positive
from records.terminal import one_line, write_stderr
from scorers.reward import Verdict

if TYPE_CHECKING:
    from rich.table import Table

UNTOLD = "not told by this server"
QUESTIONS = 4
"""Of a burst."""
_SHORT, _SHORTEST = 64, 8
"""Most tokens of a reply in a burst, and where calls are slow."""
ROLES_ASKED = 4
"""Queries that each role is timed with."""
TEXTS = 32
"""Texts that the encoder is timed with, in one request."""
NOTABLE = 1.1
"""Slots whose calls together get fewer times the tokens/s of one call than this bring nothing."""
_LARGE_SHARE = 0.25
"""Of the time of a step's calls."""
_MODELS_SHOWN = 20
_GIB = 2**30


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """The run that is meant, and how long the server may be asked."""

    num_processes: Lanes = 16
    """Lanes."""
    seconds: Positive = 30
    """About how long many calls at once may take, the loading of models left out."""
    json: JsonPlace = None
    """Write what was found here."""
    mission: TimedMission = field(default_factory=TimedMission)
    server: TimedServer = field(default_factory=TimedServer)


def doctor(config: DoctorConfig = DoctorConfig()) -> None:
    """Tell what a server can do, and what would make a run on it faster."""
    check_writable(config.json)
    with prints_on_stderr():
        report = _report(config)
    if not write_json(report, config.json):
        print_report(report)


def _report(config: DoctorConfig) -> dict[str, Any]:
    """All that is found."""
    config.mission.check()
    queries = load_query_set(config.mission.query_set, config.mission.reward).train
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
    announced = most_calls(world, embedding)
    _announce(announced, config, world, connection)
    with as_user_error(EncodingError, ValueError):
        generating = sorted(world.models)
        runner: dict[str, Any] = {"num_ctx": config.mission.num_ctx} if config.mission.num_ctx else {}
        residency = check_residency(dispatcher, generating, embedding, runner)
        env_config, parts = world.parts(dispatcher)
        models = QueryMutationEnv(env_config, **parts).models
        showed = burst(dispatcher, _questions(world, models, config.seconds), config.seconds)
        slots = _slots(connection, showed)
        alone = time_roles(world, models)
        texts_per_s = time_encoder(world, models)
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
        "calls": {"announced": announced, "sent": int(dispatcher.totals()["calls"])},
    }
    return found | {"advice": list(advise(found, config.num_processes, connection.slots_setting))}


def most_calls(world: World, embedding: str | None) -> int:
    """The most calls that are made; one that fails is tried again, which is not counted."""
    return (
        residency_calls(len(world.models) + bool(embedding))
        + 2  # whether a short reply has words, and a shorter one
        + burst_calls(QUESTIONS)
        + ROLES_ASKED * world.mission.most_calls_a_step
        + 2 * bool(embedding)  # the encoder is made, and timed
    )


def _announce(calls: int, config: DoctorConfig, world: World, connection: Connection) -> None:
    models = ", ".join(sorted(world.models))
    most = config.mission.num_predict
    write_stderr(
        f"will send {models} at {', '.join(connection.servers)} at most {calls} calls, with answers of at "
        f"most {most} tokens (--num-predict) and rewordings of about three times their query, in about "
        f"{config.seconds:g} s (--seconds) and some calls more; nothing is pulled, deleted or unloaded"
    )


def _questions(world: World, models: ModelCalls, most_s: float) -> list[Call]:
    """Questions for a burst, as an environment asks them, whose replies are short where they can be.

    Of a model that thinks first, so few tokens may hold no word: then replies are as long as the run's. Where
    calls are so slow that a burst of them takes longer than `most_s`, they are shorter still.
    """
    num_predict = world.mission.num_predict
    asked = []
    for text in [query.text for query in world.queries[:QUESTIONS]]:
        call = models.call(Ask(original=text, query=text))
        asked.append(replace(call, options={**call.options, "temperature": 0, "seed": 0}))
    tokens = min(num_predict, _SHORT)
    began_s = time.monotonic()
    first = models.dispatcher.generate(_of_length(asked[0], tokens))
    if isinstance(first.error, BadReplyError):
        return asked
    burst_s = (time.monotonic() - began_s) * fewest_burst_calls(QUESTIONS)
    if burst_s > most_s:
        fewer = min(tokens, max(_SHORTEST, int(tokens * most_s / burst_s)))
        again = models.dispatcher.generate(_of_length(asked[0], fewer))
        tokens = tokens if isinstance(again.error, BadReplyError) else fewer
    return [_of_length(each, tokens) for each in asked]


def _of_length(call: Call, tokens: int) -> Call:
    return replace(call, options={**call.options, "num_predict": tokens})


def time_roles(world: World, models: ModelCalls) -> list[dict[str, Any]]:
    """Each role's calls one after another: rewordings by a model, answers, and a judge's verdicts.

    Returns:
        For each role its model, seconds a call, tokens of replies a second (None: not told), and how many
        calls of it a step makes on the mean: mutators are drawn alike, and those by rule call no model.

    Raises:
        OllamaError: a call failed.
        RunStoppedError: all replies of a role were no good.
    """
    mutators = load_mutators(world.mission.mutators)
    by_model = [each for each in mutators if each.kind == "model"]
    texts = _cycled(world, ROLES_ASKED)
    questions = [Ask(original=text, query=text) for text in texts]
    rows = []
    if by_model:
        rewrites = [
            Rewrite(mutator=by_model[place % len(by_model)], query=text, seed=place)
            for place, text in enumerate(texts)
        ]
        rewordings, row = _timed(models, lambda: models.reword(rewrites))
        share = len(by_model) / len(mutators)
        rows.append({"role": "mutator", "model": models.models.mutator, "per_step": share} | row)
        questions = [
            replace(question, query=rewording.text)
            for question, rewording in zip(questions, rewordings, strict=True)
        ]
    replies, row = _timed(models, lambda: models.ask(questions))
    rows.append({"role": "target", "model": models.models.target, "per_step": 1.0} | row)
    if world.judged:
        answered = [place for place, reply in enumerate(replies) if not reply.error]
        asked, given = [questions[place] for place in answered], [replies[place] for place in answered]
        _, row = _timed(models, lambda: models.score(asked, given, [1.0] * len(asked)))
        rows.append({"role": "judge", "model": world.roles.judge or "", "per_step": 1.0} | row)
    return rows


def _timed(
    models: ModelCalls, work: Callable[[], Sequence[Completion | Verdict]]
) -> tuple[list[Any], dict[str, Any]]:
    """What one role's calls gave, and what they took; a reply that is no good takes as long as another."""
    before, began_s = models.dispatcher.totals(), time.perf_counter()
    given = list(work())
    wall_s = time.perf_counter() - began_s
    errors = [each.error for each in given if each.error]
    for error in errors:
        if isinstance(error, OllamaError) and not isinstance(error, BadReplyError):
            raise error
    if len(errors) == len(given):
        raise RunStoppedError(str(errors[0]))
    tokens = models.dispatcher.totals()["completion_tokens"] - before["completion_tokens"]
    return given, {"call_s": wall_s / len(given), "tokens_per_s": tokens / wall_s if tokens else None}


def time_encoder(world: World, models: ModelCalls) -> float:
    """Texts a second, many in one request.

    Raises:
        OllamaError: a call failed.
        ValueError: the encoder fails at a text.
    """
    texts = [f"{text} ({place})" for place, text in enumerate(_cycled(world, TEXTS))]
    began_s = time.perf_counter()
    models.encoder.encode(texts)
    return len(texts) / (time.perf_counter() - began_s)


def _cycled(world: World, count: int) -> list[str]:
    return [world.queries[place % len(world.queries)].text for place in range(count)]


def advise(report: Mapping[str, Any], lanes: int, slots_setting: str) -> Iterator[dict[str, str]]:
    """What a user may change: what to `do`, and `why`. What it brings is not measured.

    Args:
        report: as `mutagym doctor --json` writes it.
        lanes: of the run that is meant.
        slots_setting: what gives the server more slots, up to their number.
    """
    if displaced := report["residency"]["displaced"]:
        models = len(report["residency"]["models"])
        yield {
            "do": f"OLLAMA_MAX_LOADED_MODELS={models} ollama serve, or one model in all roles",
            "why": f"{', '.join(displaced)} had to leave the memory for the others; there must be room for "
            "all",
        }
    wanted = min(math.ceil(lanes / max(1, len(report["slots"]))), ADVISED_SLOTS)
    few = [each for each in report["slots"] if each["slots"] and each["slots"] < wanted]
    full, alone = (report["burst"][f"tokens_per_s_{each}"] for each in ("full", "alone"))
    brought = full / alone if full and alone else None
    if few and not (few[0]["slots"] > 1 and brought is not None and brought < NOTABLE):
        slots = few[0]["slots"]
        bring = (
            f"with these, calls at once get {brought:.2g} times the tokens/s of one call alone"
            if slots > 1 and brought
            else "what slots bring depends on the machine, much on most GPUs and little on a CPU"
        )
        serve = " ollama serve" if slots_setting.startswith("OLLAMA") else ""
        yield {
            "do": f"{slots_setting}{wanted}{serve}",
            "why": f"{few[0]['model']} has {slots} {'slot' if slots == 1 else 'slots'} for {lanes} lanes; "
            f"{bring}: start it so, and run doctor again",
        }
    roles = {row["role"]: row for row in report["alone"]}
    if "mutator" in roles and roles["mutator"]["model"] == roles["target"]["model"]:
        step_s = {role: row["call_s"] * row["per_step"] for role, row in roles.items()}
        share = step_s["mutator"] / sum(step_s.values())
        if share >= _LARGE_SHARE:
            yield {
                "do": "a smaller --mutator-model",
                "why": f"rewordings by {roles['mutator']['model']} take {100 * share:.0f} % of the time of a "
                "step's calls: run doctor with it, to see that both stay in memory",
            }


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
        print_parts(_tables(report), [], simulated=False)
        for advice in report["advice"]:
            print(one_line(f"advice: {advice['do']}: {advice['why']}"))
        if not report["advice"]:
            print("advice: none")


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


ALONE = (
    "One call after another; tokens of replies. How fast a run is under each schedule, `mutagym bench` "
    "measures."
)


def _tables(report: Mapping[str, Any]) -> Iterator[tuple[list[Table], str]]:
    alone = new_table("Each role, alone", "role", "model", "s a call", "tokens/s", names=2)
    for row in report["alone"]:
        speeds = number(row["call_s"], "{:.3g}"), number(row["tokens_per_s"], "{:.3g}")
        alone.add_row(row["role"], row["model"], *speeds)
    yield [alone], ALONE
