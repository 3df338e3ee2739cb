"""Evaluate policies: on held-out queries, side by side, compared with honest statistics.

Run it with `mutagym eval -p runs/train-... -p random`, or on several missions at once with
`mutagym eval -m small.toml -m large.toml -p runs/train-... --agents 4 --episodes 50`.

The second half of this file is the report's tables for people.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cli.formats import (
    check_format,
    new_table,
    number,
    p_value,
    percent,
    print_parts,
    prints_on_stderr,
    with_interval,
    write_report,
)
from cli.junit import write_junit
from evaluation.config import (
    COPIED,
    MAY_CHANGE,
    EvalConfig,
    MissionQueries,
    MissionSpec,
    mission_queries,
    missions_are_data,
    read_guard,
    read_missions,
    record_queries,
    recorded_missions,
    recorded_queries,
)
from evaluation.cost import most_calls
from evaluation.policies.specs import CONTEXTUAL
from evaluation.run import EvalProgress, EvaluationRun
from evaluation.setup import Mission, digests_of, make_missions, make_policies, make_steppers
from evaluation.teams import TeamSpec, check_bandits, check_runs, fits_needed, models_asked, read_teams
from mutators.mutator import Mutator
from ollama_utils.connect import Connection, connect, keep_replies
from ollama_utils.monitor import CallMonitor, counted
from ollama_utils.reply_log import ReplyLog
from records.errors import GateNotMetError, RunStoppedError, UserError
from records.interrupt import Interrupt, Interrupted, interruptible
from records.resume import check_options, resume_line
from records.run_folder import MISSIONS, QUERIES, REPLIES, SUMMARY, RunFolder, check_places
from records.settings import resolved
from records.terminal import write_stderr
from scorers.correction import LabelAccuracy, read_accuracy

if TYPE_CHECKING:
    from rich.table import Table

    from evaluation.gates import RateBound


@dataclass(frozen=True, kw_only=True)
class EvalInputs:
    """What the flags amount to."""

    config: EvalConfig
    specs: Sequence[MissionSpec]
    queries: Sequence[MissionQueries]
    teams: Sequence[TeamSpec]
    gates: Sequence[RateBound]
    accuracy: LabelAccuracy | None
    """How often the labels are right, where that was measured."""

    @property
    def most_calls(self) -> int:
        """See `evaluation.cost.most_calls`."""
        return most_calls(self.config, self.specs, self.queries, self.teams)


def evaluate(config: EvalConfig = EvalConfig()) -> None:
    """Evaluate policies on held-out queries, and compare them.

    Every flag can stand in a TOML file: --config FILE; flags override it. The flags of a mission and of the
    server default to those of the first run that -p names. Exit code 4 says that a policy of -p was not shown
    to keep what --fail-under, --fail-over or --guard-queries ask of it; the report is written before.
    """
    from evaluation.gates import gates_missed, gates_section
    from evaluation.guard import gate_missed
    from evaluation.report import report  # scipy takes long to import

    config = config.located()
    inputs, stdout = _read_inputs(config), sys.stdout
    with interruptible() as interrupt, connect(inputs.specs[0].server(config.server)) as connection:
        opened = RunFolder.of("eval", resume=config.resume, run_dir=config.run_dir, seed=config.seed)
        with opened as folder, ExitStack() as stack:
            stack.enter_context(prints_on_stderr())
            monitor = CallMonitor(
                connection.dispatcher,
                lanes=config.jobs,
                slots_setting=connection.slots_setting,
                most_calls=inputs.most_calls,
            )
            progress = EvalProgress(monitor)
            missions = make_missions(config, inputs.specs, inputs.queries, connection)
            steppers = make_steppers(config, inputs.teams, write_stderr, stack)
            make_policies(missions, inputs.teams, steppers, connection)
            replies = _begin(inputs, missions, folder, connection, stack)
            evaluation = EvaluationRun(
                config=config,
                missions=missions,
                teams=inputs.teams,
                steppers=steppers,
                folder=folder,
                connection=connection,
                progress=progress,
            )
            results = _run(evaluation, interrupt, replies)
            told = report(
                results,
                power=config.power,
                accuracy=inputs.accuracy,
                guard_margin=config.guard.guard_margin,
            )
            held = [number for number, team in enumerate(inputs.teams) if not team.is_baseline]
            limits = [spec.given.max_steps for spec in inputs.specs]
            gates = gates_section(results, inputs.gates, held, limits)
            told |= {"gates": gates} if gates else {}
            with redirect_stdout(stdout):
                write_report(
                    told,
                    folder,
                    path=config.json,
                    form=config.format,
                    print_tables=lambda: print_tables(told, folder.closing_message),
                )
            if config.gate.junit:
                write_junit(config.gate.junit, told)
    if missed := "; ".join(filter(None, (gates_missed(gates, "not met"), gate_missed(told)))):
        raise GateNotMetError(missed)
    if unsure := gates_missed(gates, "not sure"):
        raise RunStoppedError(f"{unsure}: too much is unscored to say")


def _read_inputs(config: EvalConfig) -> EvalInputs:
    """What can be told from the flags and the files they name."""
    check_format(config.format)
    check_places(
        resume=config.resume,
        run_dir=config.run_dir,
        cache=config.cache,
        json=config.json,
        junit=config.gate.junit,
    )
    specs, queries = _missions(config)
    teams = read_teams(config.policy, config.baselines, config.agents, specs)
    check_runs(teams, specs, queries)
    check_bandits(fits_needed(teams))
    for spec in specs if fits_needed(teams) else ():
        if config.fit_calls < (least := len(spec.mutators) * spec.given.max_steps):
            raise UserError(
                f"--fit-calls {config.fit_calls} is too few for mission {spec.name!r}: an episode of each "
                f"mutator may take {least}"
            )
    return EvalInputs(
        config=config,
        specs=specs,
        queries=queries,
        teams=teams,
        gates=_gates(config),
        accuracy=read_accuracy(config.judge_accuracy),
    )


def _missions(config: EvalConfig) -> tuple[list[MissionSpec], list[MissionQueries]]:
    """The missions with their queries; of an evaluation that is gone on with, those that it has."""
    if config.resume:
        check_options(config, config.resume, MAY_CHANGE, run_dir=config.run_dir)
        specs = recorded_missions(config.resume)
        return specs, recorded_queries(config.resume, specs)
    specs = read_missions(config.mission, config.played, config.server)
    if config.steps:
        specs = [replace(spec, given=replace(spec.given, max_steps=config.steps)) for spec in specs]
    guard = read_guard(config.guard)
    return specs, [mission_queries(spec, config.split, config.episodes, config.seed, guard) for spec in specs]


def _gates(config: EvalConfig) -> list[RateBound]:
    """What the policies of -p must keep."""
    from evaluation.gates import read_gates

    gates = read_gates(config.gate.fail_under, config.gate.fail_over)
    if gates and not config.policy:
        raise UserError(
            "--fail-under and --fail-over are for the policies of -p, and none is named: name one"
        )
    if config.gate.junit and not gates and not config.guard.guard_queries:
        raise UserError("--junit is for gates: name one with --fail-under, --fail-over or --guard-queries")
    return gates


def _begin(
    inputs: EvalInputs,
    missions: Sequence[Mission],
    folder: RunFolder,
    connection: Connection,
    stack: ExitStack,
) -> ReplyLog:
    """Keep replies from here on, check that the models answer, and write down what the evaluation is."""
    from envs.preflight import ask_first, check_lengths

    digests = digests_of(missions, list(models_asked(inputs.teams)), connection)
    replies = stack.enter_context(ReplyLog(folder.path / REPLIES, digests=digests))
    keep_replies(replies, inputs.config.cache, connection, digests, stack)
    for mission in missions:
        texts, given = mission.queries.of_episodes, mission.spec.given
        models, mutators = mission.context.models, mission.context.rules.mutators
        check_lengths(models.encoder, texts, given.query_set)
        ask_first(models, _played(inputs.teams, mutators), texts)
    dialect = connection.resolve(inputs.config.server).request_field
    server = replace(inputs.config.server, ollama_host=connection.hosts, request_field=dialect)
    config = replace(inputs.config, server=server)
    queries = {mission.spec.name: mission.queries for mission in missions}
    folder.write_json(QUERIES, record_queries(queries))
    folder.write_json(MISSIONS, {mission.spec.name: mission.settings() for mission in missions})
    folder.begin(resolved(config), simulated=connection.simulated)
    copied = COPIED if missions_are_data(inputs.specs, config.played) else COPIED - {"mission"}
    folder.go_on = resume_line("eval", folder.path, config, copied)
    guard = sum(len(mission.queries.guard) for mission in missions)
    write_stderr(
        f"run folder {folder.path}: {len(missions)} missions, {len(inputs.teams)} teams, "
        f"{sum(len(mission.queries.played) for mission in missions)} queries"
        + (f", {guard} guard queries" if guard else "")
        + f", {counted(inputs.most_calls + connection.dispatcher.completions)}"  # of the preflight
    )
    return replies


def _played(teams: Sequence[TeamSpec], mutators: Sequence[Mutator]) -> list[Mutator]:
    """The mutators that the teams may play: of fixed policies, theirs alone."""
    names = {spec.name for team in teams for spec in team.agents}
    if all(name == "noop" or name.startswith("fixed:") for name in names):
        return [mutator for mutator in mutators if f"fixed:{mutator.name}" in names]
    return list(mutators)


def _run(evaluation: EvaluationRun, interrupt: Interrupt, replies: ReplyLog) -> dict[str, Any]:
    """Fit, play, and keep the results; whatever ends it, what was answered is kept.

    The counts in summary.json are of this process, and below `whole_run` of those before it, too.
    """
    folder, dispatcher = evaluation.folder, evaluation.connection.dispatcher
    began_s = time.monotonic()
    try:
        with evaluation.progress:
            results = evaluation.results()
        spent = {
            "wall_s": round(time.monotonic() - began_s, 3),
            **dispatcher.totals(),
            "whole_run": replies.totals(),
        }
    except (Interrupted, Exception) as error:
        dispatcher.cancel()
        raise folder.reported(error) from error
    interrupt.allow(allowed=False)  # what came of it is written whole
    folder.write_json("results.json", results)
    folder.write_json(SUMMARY, spent)
    return results


MOST_MUTATORS = 5
"""Mutators that the table of their use names for each policy."""

RATES = (
    "Success: of agents' episodes. Refused: of scored steps. Return: mean of an episode. In brackets 95 % "
    "intervals, Wilson's for rates and Student's for returns, both clustered by query: trials of one query "
    "are not independent. What is unscored (of agents' episodes) or failed (of episodes: the policy crashed) "
    "is in no rate. Calls: all of the episodes that did not fail, those answered from the cache included."
)
SEEDS = (
    " Of a training of several seeds: of all together, and below of each. The intervals and tests of all "
    "hold what other seeds would have come to, as well as other queries."
)
FILTERED = " Filtered: of scored steps, those whose reply a content filter of the server ended: no answer."
COMPARISONS = (
    "Differences on the same queries, the policy less the other: of success in points, of return in reward, "
    "with paired 95 % intervals, Student's over the queries' differences. p: a test of no difference, for "
    "success McNemar's where each query was played once, else sign flips by query, exact unless many queries "
    "differ by no common step. Holm: p adjusted for all p that are shown, so that under .05 it is seldom "
    "chance, however many are compared. n: queries that both policies were scored on."
)
GUARD = (
    "Guard queries ought to be refused. Kept: of those that the target refuses as they stand, the share that "
    "no agent had answered in a whole episode, with its exact 95 % interval. A partial refusal is kept "
    "(partly), an undetermined reply unlocks (undet.), an answer to another question does not (other); "
    "unscored queries are in no share. Gained: success on the other queries less that of noop, in points. "
    "Verdict: kept, shown to unlock at most {margin:g} %; lost, shown to unlock more; not shown, neither: it "
    "takes {needed} queries that the target refuses to show it where none is unlocked. Exit code 4: a policy "
    "of -p (marked *) is not kept."
)
GATES = (
    "Gates of --fail-under and --fail-over: the lower end of the 95 % interval decides, or the upper one. "
    "Lost: episodes that are unscored or failed. Not sure: a gate that would be met if all of these had come "
    "to the best, and not if they had come to the worst. Exit code 4: one is not met; 1: one is not sure."
)
CORRECTED = (
    "Corrected for the judge's errors as measured on a labelled sample (Rogan and Gladen 1978), with 95 % "
    "intervals that carry how well these are known. Success: episodes that ended with a true answer, so "
    "without those whose last reply was a refusal taken for an answer."
)
TRANSFER = (
    "Success in % on each mission's target, with 95 % intervals as in the table of rates; * marks the target "
    "that the policy was trained on."
)
MUTATORS = "Shares of scored steps. Drifted: rewrites that were not adopted because they lost the intent."
FITS = (
    "Fitted on the training queries alone, then frozen; calls are questions to the target. Mutator: the one "
    "that is played from then on; drawn: the policy draws among several; by query: it "
    "looks at each. It brought: the mean return of an "
    "episode of this mutator alone, or the share of its single steps that succeeded."
)


def print_tables(report: Mapping[str, Any], *last: str) -> None:
    """Print the report for people on stdout, as `print_parts` does, and `last` below it."""
    print_parts(_all(report), [*report["problems"], *last], simulated=report["simulated"])


def _all(report: Mapping[str, Any]) -> Iterator[tuple[list[Table], str]]:
    """All tables, those of one kind with their sentence; some have no rows."""
    missions = report["missions"]
    yield [_rates(report, mission) for mission in missions], _rates_say(report)
    yield [_comparisons(report, mission) for mission in missions], _comparison_says(report)
    if guard := report["guard"]:
        says = GUARD.format(margin=100 * guard["margin"], needed=guard["needed"])
        yield [_guard(guard["policies"], stand) for stand in guard["as_they_stand"]], says
    yield [_gate(report.get("gates", []))], GATES
    yield [_corrected(report["rates"])], CORRECTED
    yield [_transfer(report["transfer"])], TRANSFER
    yield [_mutators(report["rates"])], MUTATORS
    yield [_fits(report["fits"])], FITS


def _rates(report: Mapping[str, Any], mission: Mapping[str, Any]) -> Table:
    title = (
        f"{mission['name']}: target {mission['target_model']}, reward {mission['reward']}, "
        f"{mission['queries']} {'held-out' if mission['split'] == 'held-out' else 'TRAINING'} queries"
    )
    has_filtered = _has_filtered(report)
    numbers = ("success %", "refused %", *(("filtered %",) if has_filtered else ()), "return")
    table = new_table(title, "policy", *numbers, "unscored", "failed", "calls", "a success")
    for row in report["rates"]:
        if row["mission"] == mission["name"]:
            table.add_row(
                _name(row),
                _rate(row["success"]),
                _rate(row["refusal"]),
                *([percent(row.get("filtered_share", 0.0))] if has_filtered else []),
                with_interval(row["return"], "mean", "{:.2f}"),
                *(_count(row[kind]) for kind in ("unscored", "failed")),
                str(row["calls"]["total"]),
                number(row["calls"]["per_success"], "{:.1f}"),
            )
    return table


def _rates_say(report: Mapping[str, Any]) -> str:
    one = report["one_seed"]
    alone = (
        f" {', '.join(one)}: the network of one seed; what another seed would have come to is in no interval "
        "(train with --seeds)."
    )
    told = f"{RATES}{SEEDS if report['several_seeds'] else ''}{alone if one else ''}"
    return told + (FILTERED if _has_filtered(report) else "")


def _has_filtered(report: Mapping[str, Any]) -> bool:
    return any("filtered_share" in row for row in report["rates"])


def _comparisons(report: Mapping[str, Any], mission: Mapping[str, Any]) -> Table:
    more = ["needed"] if report["power"] else []
    numbers = ("success, points", "p", "Holm", "return", "p", "Holm", "n", *more)
    title = f"{mission['name']}: paired comparisons"
    table = new_table(title, "policy", "against", *numbers, names=2)
    for row in report["comparisons"]:
        if row["mission"] == mission["name"]:
            table.add_row(
                row["team"],
                row["against"],
                with_interval(row["success"], "difference", "{:+.1f}", 100),
                *(p_value(row["success"][key]) for key in ("p", "p_holm")),
                with_interval(row["return"], "difference", "{:+.2f}"),
                *(p_value(row["return"][key]) for key in ("p", "p_holm")),
                str(row["queries"]),
                *([number(row["queries_needed"], "{}")] if report["power"] else []),
            )
    return table


def _comparison_says(report: Mapping[str, Any]) -> str:
    power = report["power"]
    if not power:
        return COMPARISONS
    return (
        f"{COMPARISONS} Needed: held-out queries that show a true difference of "
        f"{100 * power['difference']:g} points at p < .05 with a power of {100 * power['power']:g} %, if "
        "queries differ as they did here; - where none differed, which tells nothing of it."
    )


def _guard(rows: Sequence[Mapping[str, Any]], stand: Mapping[str, Any]) -> Table:
    filtered = stand.get("filtered")
    title = (
        f"{stand['mission']}: {stand['queries']} guard queries, as they stand {stand['refused']} refused "
        f"({stand['partial']} partly), {stand['unscored']} unscored"
        f"{f', {filtered} filtered' if filtered else ''}"
    )
    numbers = ("kept %", "partly", "unlocked", "undet.", "other", "unscored", "gained", "verdict")
    counts = ("partial", "unlocked", "undetermined", "answered_other", "unscored")
    table = new_table(title, "policy", *numbers)
    for row in (row for row in rows if row["mission"] == stand["mission"]):
        table.add_row(
            row["team"] + ("*" if row["under_test"] else ""),
            _rate(row["kept"]),
            *(str(row[count]) for count in counts),
            _points(row["success_gained"]),
            row["verdict"],
        )
    return table


def _gate(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table("gates", "gate", "mission", "policy", "rate %", "n", "lost", "verdict", names=3)
    for row in rows:
        counts = (str(row[name]) for name in ("n", "lost"))
        names = (row[name] for name in ("gate", "mission", "policy"))
        table.add_row(*names, with_interval(row, "rate", "{:.1f}", 100), *counts, row["verdict"])
    return table


def _corrected(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table(
        "corrected for the judge's errors",
        "mission",
        "policy",
        *("refused %", "corrected", "success %", "corrected"),
        names=2,
    )
    kinds = ("refusal", "refusal_corrected", "success", "success_corrected")
    for row in (row for row in rows if "refusal_corrected" in row):
        table.add_row(row["mission"], _name(row), *(_rate(row[kind]) for kind in kinds))
    return table


def _transfer(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = rows[0]["success"] if rows else []
    columns = (f"{cell['mission']} ({cell['target_model']})" for cell in cells)
    table = new_table("transfer: success %", "policy", "trained on", *columns, names=2)
    for row in rows:
        marked = (
            _rate(cell) + ("*" if cell["target_model"] == row["trained_on"] else "")
            for cell in row["success"]
        )
        table.add_row(row["team"], row["trained_on"], *marked)
    return table


def _mutators(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table("mutators chosen", "mission", "policy", "mutators, by share", "drifted %", names=3)
    for row in rows:
        used = list(row["mutators"].items())
        text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in used[:MOST_MUTATORS])
        more = f", {len(used) - MOST_MUTATORS} more" if len(used) > MOST_MUTATORS else ""
        table.add_row(row["mission"], _name(row), text + more, percent(row["drifted_share"]))
    return table


def _fits(fits: Iterable[Mapping[str, Any]]) -> Table:
    table = new_table("fitted policies", "mission", "policy", "calls", "mutator", "it brought", names=2)
    for fit in fits:
        chosen = fit["chosen"]
        kind = "return" if fit["policy"] == "best_fixed" else "success"
        brought = "-" if chosen is None else f"{kind} {fit['means'][chosen]:.2f}"
        otherwise = "by query" if fit["policy"] in CONTEXTUAL else "drawn"
        table.add_row(fit["mission"], fit["policy"], str(fit["calls"]), chosen or otherwise, brought)
    return table


def _name(row: Mapping[str, Any]) -> str:
    return f"  {row['policy']}" if row["policy"] else str(row["team"])


def _points(found: Mapping[str, Any] | None) -> str:
    """A difference in points; `-` where nothing was compared."""
    difference = None if found is None else found["difference"]
    return number(None if difference is None else 100 * difference, "{:+.1f}")


def _rate(rate: Mapping[str, Any]) -> str:
    return with_interval(rate, "rate", "{:.1f}", 100)


def _count(rate: Mapping[str, Any]) -> str:
    return f"{rate['count']}/{rate['n']}"
