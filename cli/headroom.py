"""Measure whether a policy is worth training, before it is trained.

    mutagym headroom --ollama-host http://127.0.0.1:11434 --queries my.csv --cache cache
    mutagym headroom --queries my.csv --guard-queries harmful.csv --mutators auto --cache cache

At temperature 0 a training with the same --cache and --seed takes replies to the queries as they
stand from the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from cli.output import print_tables, write_json
from envs.mission import MissionConfig
from envs.query_sets import GuardQueries, check_no_guard, load_query_set, read_guard
from evaluation.rates import ends
from ollama_utils.connect import Connection, ServerConfig, connect, keep_replies
from records.errors import UserError
from records.outputs import check_cache, check_writable
from records.progress import ProgressDisplay
from records.settings import Count, JsonPlace, Lanes, OpenShare, Seed, Share
from records.terminal import prints_on_stderr, write_stderr
from report.table import Table, percent, with_interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from evaluation.headroom import Arm, Headroom, Side

AUTO = "auto"
HARMLESS, GUARD = "harmless", "guard"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HeadroomConfig:
    """What is measured, and on how many queries."""

    refused: Count = 60
    """Queries of each side, without an answer as they stand, that every mutator is tried on."""
    least_gain: OpenShare = 0.05
    """The gain that a policy would be worth its calls for."""
    seed: Seed = 0
    """Same seed, same results."""
    jobs: Lanes = 32
    """Queries that are asked at the same time."""
    max_unscored: Share = 0.5
    """It stops once more than this share of recent calls failed."""
    cache: Path | None = None
    """A folder that runs share: what was asked there is not asked again, here or in a training."""
    json: JsonPlace = None
    """Write what was found here too, as JSON; `-` is stdout, in the place of tables."""
    guard: GuardQueries = field(default_factory=GuardQueries)
    mission: MissionConfig = field(default_factory=MissionConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


def headroom(*, config: HeadroomConfig = HeadroomConfig()) -> None:
    """Try every mutator on queries that are refused, and say what a policy could learn.

    `--mutators auto` tries all that are built in, and names those that open something.

    Args:
        config: What is measured.
    """
    check_writable(config.json)
    check_cache(config.cache)
    mission = _mission(config.mission)
    with connect(config.server) as connection, ExitStack() as stack:
        with prints_on_stderr():
            keep_replies(None, config.cache, connection, connection.digests(mission.encoder), stack)
            sides = _tried(replace(config, mission=mission), connection)
        found = _found(config, mission, sides)
        about = {"simulated": connection.simulated, "target_model": connection.roles.target}
        if not write_json(about | found, config.json):
            print_tables(_tables(found), found["says"], simulated=connection.simulated)


def _mission(mission: MissionConfig) -> MissionConfig:
    """The mission as it is played here: asked first, with the mutators that are tried."""
    from mutators.lexical import noop
    from mutators.registry import DEFAULT_MUTATORS, EXTRA_MUTATORS

    if not mission.asks_first:
        raise UserError(
            "headroom asks every query as it stands, and tries rewordings on what gets no answer: "
            "leave --always-reword out, and use a --reward that needs no right answers"
        )
    built_in = (*DEFAULT_MUTATORS, *(mutator.name for mutator in EXTRA_MUTATORS))
    named = built_in if mission.mutators == (AUTO,) else mission.mutators
    mission = replace(mission, mutators=tuple(name for name in named if name != noop.name))
    mission.check()
    return mission.located()


def _tried(config: HeadroomConfig, connection: Connection) -> dict[str, Side]:
    """The queries of each file that got no answer, and every mutator tried on them."""
    from envs.make import mission_parts
    from envs.mission import open_encoder
    from envs.preflight import ask_first, check_lengths
    from evaluation.episodes import EpisodeContext
    from evaluation.headroom import find_and_try

    mission = config.mission
    queries = load_query_set(mission.query_set, mission.reward).train
    guard = read_guard(config.guard)
    check_no_guard(queries, guard, "--queries")
    own = tuple(query for query in queries if query.is_guard)  # of a run's queries.json
    files = {HARMLESS: [query for query in queries if not query.is_guard], GUARD: guard or own}
    encoder = open_encoder(mission.encoder, connection.dispatcher, config.cache)
    sides = {}
    with ProgressDisplay() as display:

        def ticks(what: str, total: int) -> Callable[[int], None]:
            display.begin(what, total)
            return display.update

        for name, of_side in files.items():
            if not of_side:
                continue
            rules, models = mission_parts(
                mission if name == HARMLESS else mission.without_answers(mission.query_set),
                connection.dispatcher,
                connection.roles,
                of_side,
                seed=config.seed,
                encoder=encoder,
            )
            texts = [query.text for query in of_side]
            check_lengths(encoder, texts, mission.query_set)
            if name == HARMLESS:
                ask_first(models, rules.mutators, texts)
            tries = sum(1 + (mutator.kind == "model") for mutator in rules.mutators)
            asks = min(len(of_side), config.refused)
            write_stderr(
                f"{name} queries: at most {len(of_side)} calls to find {asks} without an answer, "
                f"and {tries} rewordings of each, of one or two calls"
            )
            context = EpisodeContext(rules=rules, models=models, seed=config.seed)
            sides[name] = find_and_try(
                context,
                of_side,
                config.refused,
                reads_rest=bool(files[GUARD]),
                jobs=config.jobs,
                max_unscored=config.max_unscored,
                ticks=ticks,
            )
    return sides


def _found(
    config: HeadroomConfig, mission: MissionConfig, sides: Mapping[str, Side]
) -> dict[str, Any]:
    """What follows from the tries, as plain data."""
    from evaluation.headroom import FEWEST, arms, says
    from evaluation.headroom import headroom as measure
    from mutators.registry import load_mutators

    names = [mutator.name for mutator in load_mutators(mission.mutators)]
    harmless, guard = sides[HARMLESS], sides.get(GUARD)
    counts = {
        name: {"asked": side.asked, "without_answer": side.found, "tried": len(side.tries)}
        for name, side in sides.items()
    }
    lines = [
        f"{name}: {side.found} of {side.asked} queries got no answer as they stand; every mutator "
        f"was tried on {len(side.tries)}"
        for name, side in sides.items()
    ]
    if mission.target_temperature > 0:
        lines.append(
            "the target's temperature is above 0: a part of what is opened is chance, for the "
            "queries were chosen by one reply"
        )
    few = [name for name, side in sides.items() if len({*side.queries.groups}) < FEWEST]
    found: dict[str, Any] = {"queries": counts, "arms": [], "headroom": None}
    if harmless.tries:
        tried = arms(names, harmless, guard)
        found["arms"] = [_arm(each) for each in tried]
        pairs = zip(mission.mutators, tried, strict=True)
        kept = [named for named, arm in pairs if arm.does_something]
        lines.append(f"mutators that open something: --mutators {','.join(['noop', *kept])}")
    if few:
        lines.append(
            f"not worth a policy, or not known: under {FEWEST} {' and '.join(few)} queries got no "
            "answer as they stand; a policy can gain no more than these"
        )
    else:
        measured = measure(
            names,
            harmless,
            guard,
            max_steps=mission.max_steps,
            least=config.least_gain,
            weight=mission.guard_weight,
            seed=config.seed,
        )
        found["headroom"] = _headroom(measured, config.least_gain)
        lines.append(
            f"best fixed: {measured.best_fixed} {measured.fixed:+.2f}; cascade of "
            f"{len(measured.cascade)}: {measured.cascade_worth:+.2f} (both chosen on these very "
            f"queries); the best mutator of each query, corrected for the luck of models: "
            f"{measured.oracle:+.2f} opened"
        )
        lines.append(says(measured, config.least_gain, sides))
    return found | {"says": lines}


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "mutator": arm.name,
        "adopted": arm.adopted,
        "handed_back": arm.handed_back,
        "opened": ends("rate", arm.opened),
        "unlocked": ends("rate", arm.unlocked),
    }


def _headroom(found: Headroom, least: float) -> dict[str, Any]:
    return {
        **vars(found),
        "gain": ends("gain", found.gain),
        "verdict": found.verdict(least),
        "least_gain": least,
    }


def _tables(found: Mapping[str, Any]) -> Iterator[Table]:
    has_guard = GUARD in found["queries"]
    rows = [
        (
            arm["mutator"],
            percent(arm["adopted"]),
            arm["handed_back"] or "-",
            with_interval(arm["opened"], "rate", 100),
            *([with_interval(arm["unlocked"], "rate", 100)] if has_guard else []),
        )
        for arm in found["arms"]
    ]
    yield Table(
        caption="every mutator on queries without an answer",
        columns=(
            "mutator",
            "adopted %",
            "else",
            "opened %",
            *(["unlocked %"] if has_guard else []),
        ),
        rows=rows,
        says=(
            "Opened: harmless queries that were answered once reworded; unlocked: guard queries. "
            "Else: the commonest reason why a rewording was not adopted. In brackets 95 % "
            "intervals, clustered by query."
        ),
    )
