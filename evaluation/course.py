"""The course of an evaluation: policies are fitted, then all episodes are played, and what came of it.

The live progress line of an evaluation, on stderr: a bar on a terminal, elsewhere a line now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from envs.episode import derive_seed
from evaluation.config import EvalConfig
from evaluation.episodes import EpisodeRun
from evaluation.fit import BanditFit, BestFixedFit, Fit, Terms
from evaluation.jobs import Jobs, play
from evaluation.policies.sources import make_bandit
from evaluation.policies.specs import PolicySpec
from evaluation.setup import Mission, Place, Sources, make_episode, places, records, sources_of
from evaluation.teams import TeamSpec, fits_needed
from evaluation.wrappers.wrapper import Wrapper
from ollama_utils.connect import Connection
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.findings import Findings
from records.failures import StepLimit
from records.json_lines import JsonLines
from records.progress import ProgressDisplay
from records.run_folder import RunFolder


class EvalProgress(ProgressDisplay):
    """Shows how far an evaluation is, what calls fail, and what is found out about the servers.

    Args:
        dispatcher: where the calls go.
        findings: what is found out about the servers.
    """

    def __init__(self, dispatcher: Dispatcher, findings: Findings) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self._findings = findings

    def start(self, what: str, total: int) -> Callable[[int], None]:
        """A part of the evaluation begins; returns what takes how much of it is done."""
        self.begin(what, total)

        def tick(done: int) -> None:
            for line in self._findings.news(self._dispatcher.capacities()):
                self.say(line)
            self.update(done)
            if self.plain_line_is_due(done):
                self.print_plain(f"{what}: {done} of {total}")

        return tick


@dataclass(frozen=True, kw_only=True)
class Course:
    """An evaluation that is ready to begin."""

    config: EvalConfig
    missions: Sequence[Mission]
    teams: Sequence[TeamSpec]
    wrappers: Sequence[Wrapper]
    """How the policies of each team are stepped."""
    folder: RunFolder
    connection: Connection
    jobs: Jobs
    progress: EvalProgress

    def results(self) -> dict[str, Any]:
        """Run it: what results.json holds, equal for equal seeds whatever the number of jobs.

        Raises:
            RunStoppedError: too many calls failed.
        """
        fits = self._fit()
        fitted = {(m, fit.name): fit.source() for m, fit in fits}
        sources = sources_of(self.missions, self.teams, fitted, self.connection.dispatcher)
        with ExitStack() as stack:
            episodes = self._episodes(sources, self._writer(stack))
        return {
            "simulated": self.connection.simulated,
            "seed": self.config.seed,
            "missions": [mission.record() for mission in self.missions],
            "teams": [team.record() for team in self.teams],
            "fits": [{"mission": m, **fit.result()} for m, fit in fits],
            "episodes": episodes,
        }

    def _fit(self) -> list[tuple[int, Fit]]:
        """Every policy that has to be, fitted on each mission."""
        wanted = [(m, spec) for m in range(len(self.missions)) for spec in fits_needed(self.teams).values()]
        if not wanted:
            return []
        makers = [partial(self._make_fit, m, spec) for m, spec in wanted]
        tick = self.progress.start("policies fitted", len(wanted))
        return [(m, fit) for (m, _), fit in zip(wanted, play(makers, self.jobs, tick), strict=True)]

    def _make_fit(self, mission: int, spec: PolicySpec) -> Fit:
        played = self.missions[mission]
        terms = Terms(
            ground=played.ground,
            queries=played.queries.train,
            calls=self.config.fit_calls,
            max_unscored=self.config.max_unscored,
        )
        if spec.kind == "best_fixed":
            return BestFixedFit(spec.name, terms, self.jobs)
        seed = derive_seed(self.config.seed, "fit", spec.name)
        bandit = make_bandit(spec, arms=len(played.ground.rules.mutators), seed=seed)
        return BanditFit(spec.name, terms, self.jobs, bandit)

    def _episodes(self, sources: Sources, write: Callable[[Place, EpisodeRun], None]) -> list[dict[str, Any]]:
        """What came of every episode, by mission, team and number."""
        order = places(self.missions, len(self.teams))
        make = partial(make_episode, self.missions, self.teams, self.wrappers, sources, self.jobs)
        runs = play(
            [partial(make, place) for place in order],
            self.jobs,
            self.progress.start("episodes played", len(order)),
        )
        limit = StepLimit(self.config.max_unscored)
        told: dict[Place, dict[str, Any]] = {}
        for place, run in zip(order, runs, strict=True):
            write(place, run)
            errors = [error for player in run.players for error in player.attempts]
            for error in filter(None, errors):
                self.progress.complain(error)
            limit.add(errors)
            told[place] = run.result()
        limit.check()
        by_place = sorted(told.items(), key=lambda item: (item[0].mission, item[0].team, item[0].episode))
        return [
            {"mission": place.mission, "team": place.team, "episode": place.episode, **episode}
            for place, episode in by_place
        ]

    def _writer(self, stack: ExitStack) -> Callable[[Place, EpisodeRun], None]:
        """What keeps the steps of an episode, where they are wanted."""
        if not self.config.save_transitions:
            return lambda _place, _run: None
        lines = JsonLines(self.folder.path / "transitions.jsonl")
        stack.callback(lines.close)

        def write(place: Place, run: EpisodeRun) -> None:
            for record in records(place, run):
                lines.write(record)
            lines.flush()

        return write
