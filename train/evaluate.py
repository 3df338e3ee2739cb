"""Evaluate policies: on held-out queries, side by side, compared with honest statistics.

Run it with `mutagym eval -p runs/train-... -p random`, or on several missions at once with
`mutagym eval -m small.toml -m large.toml -p runs/train-... --agents 4 --episodes 50`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from scorers.correction import LabelAccuracy
from train.errors import UserError
from train.evaluation.config import MAY_CHANGE, EvalConfig
from train.evaluation.course import Course
from train.evaluation.jobs import Jobs
from train.evaluation.missions import MissionQueries, MissionSpec, mission_queries, read_missions
from train.evaluation.progress import EvalProgress
from train.evaluation.setup import Mission, check_policies, digests_of, make_missions, make_wrappers
from train.evaluation.teams import TeamSpec, check_bandits, check_runs, fits_needed, models_asked, read_teams
from train.findings import Findings
from train.interrupt import Interrupt, Interrupted, interruptible
from train.label_accuracy import read_accuracy
from train.reply_logs import keep_replies
from train.resume import check_options
from train.run_folder import (
    RunFolder,
    check_cache,
    check_is_run,
    check_new_or_empty,
    check_writable,
    new_run_path,
)
from train.server import Connection, connect
from train.settings import resolved
from train.transitions import account_totals


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the flags amount to."""

    config: EvalConfig
    specs: Sequence[MissionSpec]
    queries: Sequence[MissionQueries]
    teams: Sequence[TeamSpec]
    accuracy: LabelAccuracy | None
    """How often the labels are right, where that was measured."""


def evaluate(config: EvalConfig = EvalConfig()) -> None:
    """Evaluate policies on held-out queries, and compare them.

    Every flag can stand in a TOML file: --config FILE; flags override it. The flags of a mission and of the
    server default to those of the first run that -p names.
    """
    config = config.located()
    plan, stdout = _plan(config), sys.stdout
    with interruptible() as interrupt, connect(plan.specs[0].server(config.server)) as connection:
        path = config.resume or config.run_dir or new_run_path("eval", config.seed)
        with RunFolder(path, resume=config.resume is not None) as folder, ExitStack() as stack:
            stack.enter_context(redirect_stdout(sys.stderr))  # policies may print; stdout is the report's
            progress = EvalProgress(connection.dispatcher, _findings(config, connection))
            missions = make_missions(config, plan.specs, plan.queries, connection)
            wrappers = make_wrappers(config, plan.teams, progress.say, stack)
            check_policies(missions, plan.teams, wrappers, connection)
            _begin(plan, missions, folder, connection, stack)
            with Jobs(config.jobs) as jobs:
                course = Course(
                    config=config,
                    missions=missions,
                    teams=plan.teams,
                    wrappers=wrappers,
                    folder=folder,
                    connection=connection,
                    jobs=jobs,
                    progress=progress,
                )
                results = _run(course, interrupt)
            with redirect_stdout(stdout):
                _report(plan, results, folder)


def _findings(config: EvalConfig, connection: Connection) -> Findings:
    return Findings(config.jobs, "--slots " if connection.embedded else "OLLAMA_NUM_PARALLEL=")


def _plan(config: EvalConfig) -> Plan:
    """What can be told from the flags and the files they name."""
    if config.resume:
        check_is_run(config.resume)
        check_options(config, config.resume, MAY_CHANGE, run_dir=config.run_dir)
    elif config.run_dir:
        check_new_or_empty(config.run_dir)
    check_writable(config.json)
    check_cache(config.cache)
    specs = read_missions(config.mission, config.played, config.server)
    if config.steps:
        specs = [replace(spec, given=replace(spec.given, max_steps=config.steps)) for spec in specs]
    queries = [mission_queries(spec, config.split, config.episodes, config.seed) for spec in specs]
    teams = read_teams(config.policy, config.baselines, config.agents, specs)
    check_runs(teams, specs, queries)
    check_bandits(fits_needed(teams))
    for spec in specs if fits_needed(teams) else ():
        if config.fit_calls < (least := len(spec.mutators) * spec.given.max_steps):
            raise UserError(
                f"--fit-calls {config.fit_calls} is too few for mission {spec.name!r}: an episode of each "
                f"mutator may take {least}"
            )
    accuracy = read_accuracy(config.judge_accuracy)
    return Plan(config=config, specs=specs, queries=queries, teams=teams, accuracy=accuracy)


def _begin(
    plan: Plan, missions: Sequence[Mission], folder: RunFolder, connection: Connection, stack: ExitStack
) -> None:
    """Write down what the evaluation is, and keep its replies from here on."""
    played = {mission.spec.name: resolved(mission.spec) | mission.record() for mission in missions}
    if plan.config.resume and folder.read_json("missions.json") != json.loads(json.dumps(played)):
        raise UserError(f"a mission of {str(folder.path)!r} has changed since: begin a new evaluation")
    digests = digests_of(missions, list(models_asked(plan.teams)), connection)
    keep_replies(folder, plan.config.cache, connection, digests, stack)
    folder.write_toml("config.toml", resolved(plan.config))
    folder.write_json("missions.json", played)
    print(
        f"run folder {folder.path}: {len(missions)} missions, {len(plan.teams)} teams, "
        f"{sum(len(mission.queries.played) for mission in missions)} queries",
        file=sys.stderr,
    )


def _run(course: Course, interrupt: Interrupt) -> dict[str, Any]:
    """Fit, play, and keep the results; whatever ends it, what was answered is kept."""
    folder, dispatcher = course.folder, course.connection.dispatcher
    began_s = time.monotonic()
    try:
        with course.progress:
            results = course.results()
        spent = {"wall_s": round(time.monotonic() - began_s, 3)} | account_totals(dispatcher)
    except (Interrupted, Exception) as error:
        course.jobs.close()
        dispatcher.cancel()
        print(f"to go on: mutagym eval --resume {folder.path}", file=sys.stderr)
        raise folder.reported(error) from error
    interrupt.allow(allowed=False)  # what came of it is written whole
    folder.write_json("results.json", results)
    folder.write_json("summary.json", spent)
    return results


def _report(plan: Plan, results: Mapping[str, Any], folder: RunFolder) -> None:
    """Write the report to stdout and where else it is wanted."""
    from train.evaluation.report import report
    from train.evaluation.tables import print_tables
    from train.tables import as_json, as_yaml

    config = plan.config
    told = report(results, power=config.power, accuracy=plan.accuracy)
    folder.write_json("report.json", told)
    if config.json:
        config.json.write_text(as_json(told) + "\n", encoding="utf-8")
    match config.format:
        case "table":
            print_tables(told)
        case "json":
            print(as_json(told))
        case "yaml":
            print(as_yaml(told))
