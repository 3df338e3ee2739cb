"""An evaluation under way: policies are fitted, then all episodes are played, and what came of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from envs.episode import Transition, derive_seed
from envs.transitions import transition_record
from evaluation.config import EvalConfig
from evaluation.episodes import (
    AgentEpisode,
    Call,
    EpisodePlan,
    PlayedEpisode,
    ask_as_it_stands,
    play_episode,
)
from evaluation.fit import Fit, FitPlan, fit_bandit, fit_best_fixed, fit_contextual
from evaluation.policies.specs import CONTEXTUAL, PolicySpec, make_bandit
from evaluation.setup import Mission
from evaluation.stepping import PolicyStepper
from evaluation.teams import TeamSpec, fits_needed
from ollama_utils.connect import Connection
from ollama_utils.monitor import CallMonitor
from ollama_utils.plans import POLL_S, Plan, PlanRunner
from records.failures import FailureLimit
from records.json_lines import JsonLines
from records.progress import TREND_WIDTH, ProgressDisplay, Status, digits, percent
from records.run_folder import RunFolder
from records.terminal import write_stderr

if TYPE_CHECKING:
    from train.bandit import Explore

Result = TypeVar("Result")
_OF_A_POINT = 16
"""Episodes whose mean return is a point of the trend."""


class EvalProgress(ProgressDisplay):
    """Shows on stderr how far an evaluation is, what calls fail, and what is found out about the servers.

    Args:
        monitor: watches the calls.
    """

    def __init__(self, monitor: CallMonitor) -> None:
        super().__init__()
        self._monitor = monitor
        self._agents: Counter[str] = Counter()
        """Of the agents' episodes that are over: how many came to what, and their steps."""
        self._returns: deque[float] = deque(maxlen=TREND_WIDTH * _OF_A_POINT)

    def start(self, what: str, total: int) -> Callable[[int], None]:
        """A part of the evaluation begins; returns what is to be called with how much of it is done."""
        self.begin(what, total, self._totals)

        def tick(done: int) -> None:
            for line in self._monitor.news():
                write_stderr(line)
            self.update(done)

        return tick

    def count(self, agents: Iterable[Mapping[str, Any]]) -> None:
        """Count what came of an episode, agent by agent, as it stands in results.json."""
        for agent in agents:
            self._agents["episodes"] += 1
            self._agents["unscored"] += agent["status"] == "unscored"
            if agent["status"] == "scored":
                self._agents["scored"] += 1
                self._agents["success"] += agent["success"]
                self._agents["steps"] += agent["steps"]
                self._agents["refused"] += agent["refused"]
                self._agents["filtered"] += agent.get("filtered", 0)
                self._returns.append(agent["return"])

    def _totals(self) -> Status:
        """Of all policies together: the report tells them apart."""
        n, returns = self._agents, list(self._returns)
        if not n["episodes"]:
            return Status(calls=self._monitor.line())
        points = [fmean(returns[k : k + _OF_A_POINT]) for k in range(0, len(returns), _OF_A_POINT)]
        filtered = f"filtered {percent(n['filtered'], n['steps'])} · " if n["filtered"] else ""
        came = (
            f"{f'{digits(self.per_s)} episodes/s · ' if self.per_s else ''}"
            f"success {percent(n['success'], n['scored'])} of {n['scored']} · "
            f"refused {percent(n['refused'], n['steps'])} · {filtered}"
            f"unscored {percent(n['unscored'], n['episodes'])}"
        )
        mean = f"return {fmean(returns):.2f}" if returns else ""
        return Status(outcome=came, score=mean, trend=points, calls=self._monitor.line())


class EpisodeKey(NamedTuple):
    """Where an episode stands in the results."""

    mission: int
    team: int
    episode: int


@dataclass(frozen=True, kw_only=True)
class EvaluationRun:
    """An evaluation that is ready to begin."""

    config: EvalConfig
    missions: Sequence[Mission]
    teams: Sequence[TeamSpec]
    steppers: Sequence[PolicyStepper]
    """How the policies of each team are stepped."""
    folder: RunFolder
    connection: Connection
    progress: EvalProgress

    def results(self) -> dict[str, Any]:
        """Run it: what results.json holds, equal for equal seeds whatever the number of jobs.

        Raises:
            RunStoppedError: too many calls failed.
        """
        fits = self._fits()
        for mission, fit in fits:
            self.missions[mission].policies[fit.source.name] = fit.source
        stand = self._as_they_stand()
        episodes, guarded = self._episodes()
        return {
            "simulated": self.connection.simulated,
            "seed": self.config.seed,
            "missions": [mission.record() for mission in self.missions],
            "teams": [team.record() for team in self.teams],
            "fits": [{"mission": mission, **fit.result()} for mission, fit in fits],
            "episodes": episodes,
            **({"guard": self._guard(stand, guarded)} if stand else {}),
        }

    def _guard(self, stand: Sequence[dict[str, Any]], episodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What came of the guard queries, and the numbers of the teams that are held to it: those of -p."""
        held = [number for number, team in enumerate(self.teams) if not team.is_baseline]
        return {"under_test": held, "as_they_stand": stand, "episodes": episodes}

    def _as_they_stand(self) -> list[dict[str, Any]]:
        """What the targets make of the guard queries as they stand, by mission, in their order."""
        missions = self.missions
        wanted = [
            (m, query, len(mission.queries.played) + k)
            for m, mission in enumerate(missions)
            for k, query in enumerate(mission.queries.guard)
        ]
        if not wanted:
            return []
        tick = self.progress.start("guard queries asked as they stand", len(wanted))
        plans = (ask_as_it_stands(query, missions[m].context, number) for m, query, number in wanted)
        limit = FailureLimit(self.config.max_unscored)
        found = []
        for (m, _, _), asked in zip(wanted, play_in_order(plans, self.config.jobs, tick), strict=True):
            for error in asked["errors"]:
                self.progress.complain(error)
            limit.add(asked["errors"][-1:] if asked["outcome"] == "unscored" else [""])
            found.append({"mission": m, **asked})
        limit.check()
        return found

    def _fits(self) -> list[tuple[int, Fit]]:
        """Every policy that has to be, fitted on each mission."""
        wanted = [(m, spec) for m in range(len(self.missions)) for spec in fits_needed(self.teams).values()]
        if not wanted:
            return []
        plans = [self._fit(self.missions[m], spec) for m, spec in wanted]
        tick = self.progress.start("policies fitted", len(plans))
        fits = play_in_order(plans, self.config.jobs, tick)
        return [(m, fit) for (m, _), fit in zip(wanted, fits, strict=True)]

    def _fit(self, mission: Mission, spec: PolicySpec) -> FitPlan:
        context, queries, calls = mission.context, mission.queries.train, self.config.fit_calls
        limit = FailureLimit(self.config.max_unscored)
        if spec.kind == "best_fixed":
            return fit_best_fixed(spec.name, context, queries, calls=calls, limit=limit)
        seed = derive_seed(self.config.seed, "fit", spec.name)
        if spec.kind in CONTEXTUAL:
            how = cast("Explore", spec.kind)
            return fit_contextual(spec.name, how, context, queries, calls=calls, limit=limit, seed=seed)
        bandit = make_bandit(spec, arms=len(context.rules.mutators), seed=seed)
        return fit_bandit(spec.name, bandit, context, queries, calls=calls, limit=limit)

    def _episodes(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What came of every episode, and of those with guard queries, by mission, team and number."""
        queries = [mission.queries.of_episodes for mission in self.missions]
        keys = list(episode_keys([len(texts) for texts in queries], len(self.teams)))
        limit = FailureLimit(self.config.max_unscored)
        results: dict[EpisodeKey, dict[str, Any]] = {}
        with ExitStack() as stack:
            write = self._writer(stack)
            tick = self.progress.start("episodes played", len(keys))
            played = play_in_order(map(self._episode, keys), self.config.jobs, tick)
            for key, episode in zip(keys, stack.enter_context(closing(played)), strict=True):
                write(key, episode)
                errors = [error for agent in episode.agents for error in agent.attempts]
                for error in filter(None, errors):
                    self.progress.complain(error)
                limit.add(error for agent in episode.agents for error in agent.step_errors)
                query, names = queries[key.mission][key.episode], self.teams[key.team].names
                told = episode.result(query, names, guarded=self._is_guarded(key))
                results[key] = key._asdict() | told
                if not self._is_guarded(key):
                    self.progress.count(told["agents"])
        limit.check()
        ordered = sorted(results)
        return (
            [results[key] for key in ordered if not self._is_guarded(key)],
            [results[key] for key in ordered if self._is_guarded(key)],
        )

    def _is_guarded(self, key: EpisodeKey) -> bool:
        """Whether the query of an episode is a guard query."""
        return key.episode >= len(self.missions[key.mission].queries.played)

    def _episode(self, key: EpisodeKey) -> EpisodePlan:
        """The plan of an episode."""
        mission, team = self.missions[key.mission], self.teams[key.team]
        context, query = mission.context, mission.queries.of_episodes[key.episode]
        count = len(team.agents)
        agents = [AgentEpisode(context, query, agent, key.episode) for agent in range(count)]
        sources = [mission.policies[spec.name] for spec in team.agents]
        seeds = [derive_seed(context.seed, "policy", team.name, key.episode, agent) for agent in range(count)]
        begin = partial(self.steppers[key.team].begin, sources, seeds)
        return play_episode(agents, context, begin, team.asking)

    def _writer(self, stack: ExitStack) -> Callable[[EpisodeKey, PlayedEpisode], None]:
        """What keeps the steps of an episode, where they are wanted."""
        if not self.config.save_transitions:
            return lambda _key, _episode: None
        lines = JsonLines(self.folder.path / "transitions.jsonl")
        stack.callback(lines.close)

        def write(key: EpisodeKey, episode: PlayedEpisode) -> None:
            mark = {"guard": True} if self._is_guarded(key) else {}
            for record in transition_lines(key, episode):
                lines.write(record | mark)
            lines.flush()

        return write


def play_in_order(
    plans: Iterable[Plan[Call, Any, Result]], jobs: int, tick: Callable[[int], None] = lambda _done: None
) -> Generator[Result, None, None]:
    """Play plans side by side; yields what they return in their order, as soon as it is there.

    Args:
        plans: their items are called.
        jobs: the most calls at once.
        tick: called now and then with how many have ended.

    Raises:
        BaseException: whatever a plan raises; nothing is begun after it.
    """
    ended: SimpleQueue[Any] = SimpleQueue()
    done = 0
    with PlanRunner[Call, Any](_call, jobs, fail_fast=True) as runner:
        futures = deque(runner.submit(plan) for plan in plans)
        for future in futures:
            future.add_done_callback(ended.put)
        while futures:
            while not futures[0].done():
                with suppress(Empty):  # now and then: for Ctrl-C, and to show what the servers do
                    ended.get(timeout=POLL_S).result()
                    done += 1
                tick(done)
            yield futures.popleft().result()
        tick(done + ended.qsize())


def _call(call: Call) -> Any:  # noqa: ANN401 - whatever it returns
    return call()


def episode_keys(queries: Sequence[int], teams: int) -> Iterator[EpisodeKey]:
    """All episodes in the order in which they are opened: missions and teams take turns.

    Args:
        queries: (missions,), how many each has.
        teams: how many there are.
    """
    for episode in range(max(queries)):
        for team in range(teams):
            for mission, count in enumerate(queries):
                if episode < count:
                    yield EpisodeKey(mission, team, episode)


def transition_lines(key: EpisodeKey, episode: PlayedEpisode) -> Iterator[dict[str, Any]]:
    """The lines of transitions.jsonl of an episode: step by step, in each the agents in their order."""
    steps: list[tuple[int, int, Transition]] = [
        (row, agent.agent, transition)
        for agent in episode.agents
        for row, transition in enumerate(agent.transitions)
    ]
    for row, agent, t in sorted(steps, key=lambda step: step[:2]):
        yield {
            "mission": key.mission,
            "team": key.team,
            "agent": agent,
            **transition_record(row, agent, t.info, terminated=t.terminated, truncated=t.truncated),
        }
