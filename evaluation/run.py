"""An evaluation under way: policies are fitted, all episodes are played, results are written."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from statistics import fmean
from typing import Any

from envs.episode import derive_seed
from envs.preflight import ask_first, check_lengths
from evaluation.fit import Fit, Fitting, fit_policy
from evaluation.missions import missions_are_data, record_queries
from evaluation.setup import OpenEvaluation, Played, digests_of
from evaluation.specs import PolicySpec
from evaluation.teams import TeamSpec, fits_needed, models_asked
from mutators.mutator import Mutator
from ollama_utils.monitor import CallMonitor
from ollama_utils.parallel import iterate_parallel
from ollama_utils.session import Session
from records.failures import FailureLimit
from records.json_lines import JsonLines
from records.progress import TREND_WIDTH, ProgressDisplay, Status, digits, percent
from records.run_folder import COPIED, MISSIONS, QUERIES, RunFolder
from records.terminal import write_stderr

PlayAll = Callable[[OpenEvaluation, Callable[[int], None]], Generator[Played, None, None]]
"""Plays all agents' episodes of an evaluation, and calls back with how many are done; returns them
in the order of `OpenEvaluation.keys`."""
_OF_A_POINT = 16
"""Episodes whose mean return is a point of the trend."""


class EvalProgress(ProgressDisplay):
    """Shows on stderr how far an evaluation is, what calls fail, and what the servers do."""

    def __init__(self, monitor: CallMonitor) -> None:
        super().__init__()
        self._monitor = monitor
        self._counts: Counter[str] = Counter()
        """Of the agents' episodes that are over: their status, their steps."""
        self._returns: deque[float] = deque(maxlen=TREND_WIDTH * _OF_A_POINT)

    def start(self, what: str, total: int) -> Callable[[int], None]:
        """Begin a part of the evaluation; call what is returned with how much of it is done."""
        self.begin(what, total, self._totals)

        def tick(done: int) -> None:
            for line in self._monitor.news():
                write_stderr(line)
            self.update(done)

        return tick

    def count(self, row: Mapping[str, Any]) -> None:
        """Count an agent's episode, as it stands in results.json."""
        outcomes = row["outcomes"]
        self._counts.update(
            {row["status"]: 1, "success": row["success"], "steps": len(outcomes), "episodes": 1}
        )
        self._counts.update(outcomes)
        if row["status"] == "scored":
            self._returns.append(row["return"])

    def _totals(self) -> Status:
        """Of all policies together: the report has them apart."""
        n, returns = self._counts, list(self._returns)
        if not n["episodes"]:
            return Status(calls=self._monitor.line())
        parts = [
            f"{digits(self.per_s)} episodes/s" if self.per_s else "",
            f"success {percent(n['success'], n['scored'])} of {n['scored']}",
            f"refused {percent(n['refused'] + n['partial'], n['steps'])}",
            f"filtered {percent(n['filtered'], n['steps'])}" if n["filtered"] else "",
            f"unscored {percent(n['unscored'], n['episodes'])}",
        ]
        points = [fmean(returns[k : k + _OF_A_POINT]) for k in range(0, len(returns), _OF_A_POINT)]
        return Status(
            outcome=" · ".join(filter(None, parts)),
            score=f"return {fmean(returns):.2f}" if returns else "",
            trend=points,
            calls=self._monitor.line(),
        )


def begin(evaluation: OpenEvaluation, session: Session) -> None:
    """Keep replies from here on, check that the models answer, and write down what it is.

    Raises:
        UserError: a model does not answer, a query is too long, or the hosts have different models.
    """
    inputs, missions = evaluation.inputs, evaluation.missions
    config, connection, folder = inputs.config, session.connection, session.folder
    digests = digests_of(missions, models_asked(inputs.teams), connection)
    session.keep_replies(digests, config.cache)
    for mission in missions:
        texts, models = mission.queries.played, mission.context.models
        check_lengths(models.encoder, texts, mission.spec.given.query_set)
        if not mission.spec.guard:
            ask_first(models, _may_play(inputs.teams, mission.context.rules.mutators), texts)
    dialect = connection.resolve(config.server).request_field
    server = replace(config.server, ollama_host=connection.hosts, request_field=dialect)
    own = [mission for mission in missions if not mission.spec.guard]
    folder.write_json(QUERIES, record_queries({each.spec.name: each.queries for each in missions}))
    folder.write_json(MISSIONS, {each.spec.name: each.settings() for each in own})
    are_data = missions_are_data([each.spec for each in own], config.played)
    session.begin(
        replace(config, server=server),
        f"{len(missions)} missions, {len(inputs.teams)} teams, "
        f"{sum(len(each.queries.played) for each in missions)} queries",
        most_calls=inputs.most_calls,
        copied=COPIED if are_data else COPIED - {"mission"},
    )


def _may_play(teams: Sequence[TeamSpec], mutators: Sequence[Mutator]) -> list[Mutator]:
    """The mutators that the teams may play; where all policies are fixed, only those they name."""
    names = {spec.name for team in teams for spec in team.agents}
    if all(name == "noop" or name.startswith("fixed:") for name in names):
        return [mutator for mutator in mutators if f"fixed:{mutator.name}" in names]
    return list(mutators)


def run(
    evaluation: OpenEvaluation,
    folder: RunFolder,
    progress: EvalProgress,
    play_all: PlayAll,
) -> dict[str, Any]:
    """Fit and play: what results.json holds, equal for equal seeds whatever the number of jobs.

    The folder gets transitions.jsonl where the flags ask for it.

    Raises:
        RunStoppedError: too many calls failed, or a policy could not be fitted.
    """
    config = evaluation.inputs.config
    fits = _fit_all(evaluation, progress)
    rows = []
    limit = FailureLimit(config.max_unscored)
    tick = progress.start("episodes played", len(evaluation.keys()))
    with ExitStack() as stack:
        lines = None
        if config.save_transitions:
            lines = stack.enter_context(closing(JsonLines(folder.path / "transitions.jsonl")))
        for played in stack.enter_context(closing(play_all(evaluation, tick))):
            if lines:
                for line in played.transitions:
                    lines.write(line)
                lines.flush()
            for error in filter(None, played.attempt_errors):
                progress.complain(error)
            limit.add(played.step_errors)
            if not evaluation.missions[played.key.mission].spec.guard:
                progress.count(played.row)
            rows.append((played.key, played.row))
    limit.check()
    return {
        "seed": config.seed,
        "missions": [mission.record() for mission in evaluation.missions],
        "teams": [team.record() for team in evaluation.inputs.teams],
        "fits": [{"mission": mission, **fit.result()} for mission, fit in fits],
        "repeats": config.repeats,
        "episodes": [row for _, row in sorted(rows, key=lambda each: each[0])],
    }


def play_here(
    evaluation: OpenEvaluation, tick: Callable[[int], None]
) -> Generator[Played, None, None]:
    """Play all episodes in this process, `--jobs` at once."""
    jobs = evaluation.inputs.config.jobs
    return iterate_parallel(evaluation.play, evaluation.keys(), jobs, tick)


def _fit_all(evaluation: OpenEvaluation, progress: EvalProgress) -> list[tuple[int, Fit]]:
    """Fit every policy that has to be on each mission; the missions get them."""
    inputs = evaluation.inputs
    wanted = [
        (number, spec)
        for number, mission in enumerate(evaluation.missions)
        if not mission.spec.guard
        for spec in fits_needed(inputs.teams).values()
    ]
    jobs = inputs.config.jobs
    at_once = max(1, min(jobs, len(wanted)))

    def fit(item: tuple[int, PolicySpec]) -> Fit:
        number, spec = item
        mission = evaluation.missions[number]
        fitting = Fitting(
            name=spec.name,
            context=mission.context,
            queries=mission.queries.train,
            calls=inputs.fit_calls,
            jobs=jobs // at_once,
            max_unscored=inputs.config.max_unscored,
            seed=derive_seed(inputs.config.seed, "fit", spec.name),
        )
        return fit_policy(spec.kind, fitting)

    if not wanted:
        return []
    tick = progress.start("policies fitted", len(wanted))
    with closing(iterate_parallel(fit, wanted, at_once, tick)) as fits:
        found = [(number, fit) for (number, _), fit in zip(wanted, fits, strict=True)]
    for number, each in found:
        evaluation.missions[number].policies[each.source.name] = each.source
    return found
