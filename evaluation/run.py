"""An evaluation from its flags to its results: one flat pool of agents' episodes.

What the flags amount to is checked, missions and policies are made, policies are fitted, and all
episodes are played side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from envs.episode import derive_seed
from envs.make import mission_parts
from envs.mission import open_encoder, return_bounds
from envs.preflight import ask_first, check_lengths
from envs.queries import answers_of, chats_of, guards_of, queries_sha256
from envs.query_sets import read_guard
from envs.transitions import transition_record
from evaluation.config import FIT_CALLS, MAY_CHANGE, EvalConfig
from evaluation.episodes import AgentEpisode, EpisodeContext
from evaluation.fit import Fit, Fitting, fit_policy
from evaluation.missions import (
    MissionSpec,
    guard_missions,
    missions_are_data,
    read_missions,
    record_queries,
    recorded_missions,
    with_queries,
    with_recorded_queries,
)
from evaluation.policies import OrderedPolicy, PolicySource
from evaluation.specs import (
    FITTED,
    PolicySpec,
    TeamSpec,
    make_source,
    read_runs,
    read_teams,
    trained_source,
)
from evaluation.stepping import PolicyStepper
from mutators.mutator import Mutator
from ollama_utils.connect import Connection, Roles
from ollama_utils.encoders import Encoder
from ollama_utils.monitor import CallMonitor
from ollama_utils.parallel import iterate_parallel
from ollama_utils.session import Session
from records.errors import UserError, as_user_error
from records.failures import FailureLimit
from records.json_lines import JsonLines
from records.progress import ProgressDisplay, Status, percent
from records.resume import check_options
from records.run_folder import COPIED, MISSIONS, QUERIES, SUMMARY, RecordedRun, RunFolder
from records.settings import resolved
from records.terminal import write_stderr
from train.policy import TrainedRun

Tick = Callable[[int], None]
"""Is called now and then with how much is done."""


@dataclass(frozen=True, kw_only=True)
class EvalInputs:
    """What the flags of an evaluation amount to; it can be pickled."""

    config: EvalConfig
    missions: Sequence[MissionSpec]
    """With their queries; where there are guard queries, those of each with these are the last."""
    teams: Sequence[TeamSpec]
    runs: Mapping[str, TrainedRun]
    """The training runs among the policies, by the names of these."""

    @cached_property
    def policies(self) -> dict[str, PolicySpec]:
        """All policies, by their names."""
        return {spec.name: spec for team in self.teams for spec in team.agents}

    @property
    def fitted(self) -> list[PolicySpec]:
        """Those that are fitted before they play."""
        return [spec for spec in self.policies.values() if spec.kind in FITTED]

    @property
    def models(self) -> list[str]:
        """The models that policies ask."""
        return [spec.arg for spec in self.policies.values() if spec.kind == "llm"]

    @cached_property
    def fit_calls(self) -> int:
        """The questions that each fit may ask: by default as many as a run was trained on."""
        folders = [run.path for run in self.runs.values() if (run.path / SUMMARY).is_file()]
        summaries = [RecordedRun(folder).read_json(SUMMARY) for folder in folders]
        spent = ("env_steps", "screened", "guard")
        trained = [sum(summary.get(name) or 0 for name in spent) for summary in summaries]
        return self.config.fit_calls or max([FIT_CALLS, *trained])

    @property
    def most_calls(self) -> int:
        """The calls that it makes at most, those that embed and failed attempts left out."""
        agents = [spec for team in self.teams for spec in team.agents]
        choices = sum(spec.kind == "llm" for spec in agents)
        fits = len(self.fitted) * self.fit_calls
        total = 0
        for mission in self.missions:
            a_step = mission.given.most_calls_a_step
            episode = mission.given.max_steps * (len(agents) * a_step + choices)
            episode += len(agents) * mission.given.asks_first
            total += len(mission.played) * self.config.repeats * episode
            total += 0 if mission.guard_of else fits * a_step
        return total


def read_inputs(config: EvalConfig) -> EvalInputs:
    """Read the files that the flags name, and check all that is set.

    Raises:
        UserError: something is missing, or does not fit.
    """
    missions = _missions(config)
    names = [mission.name for mission in missions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two missions are called {twice!r}: give each another 'name'")
    mutators = tuple(dict.fromkeys(name for mission in missions for name in mission.mutators))
    guarded = any(mission.guard_of for mission in missions)
    teams = read_teams(config.policy, config.baselines, config.agents, mutators, guarded=guarded)
    runs = read_runs(teams)
    inputs = EvalInputs(config=config, missions=missions, teams=teams, runs=runs)
    for run in runs.values():
        for mission in missions:
            run.check_fits(mission.given, f"mission {mission.name!r}")
            if mission.guard_of or config.split != "train":
                _check_unseen(run, mission)
    for mission in missions if inputs.fitted else ():
        least = len(mission.mutators) * mission.given.max_steps + mission.given.asks_first
        if inputs.fit_calls < least:
            raise UserError(
                f"--fit-calls {inputs.fit_calls} is too few for mission {mission.name!r}: an "
                f"episode of each mutator may take {least}"
            )
    return inputs


def _missions(config: EvalConfig) -> list[MissionSpec]:
    """The missions with their queries; of an evaluation that is resumed, those that it has."""
    if config.resume:
        check_options(config, config.resume, MAY_CHANGE, run_dir=config.run_dir)
        missions = with_recorded_queries(config.resume, recorded_missions(config.resume))
        return missions + guard_missions(missions, config.guard)
    missions = read_missions(config.mission, config.played, config.server)
    if steps := config.steps:
        missions = [replace(each, given=replace(each.given, max_steps=steps)) for each in missions]
    guard = read_guard(config.guard)
    missions = [
        with_queries(each, config.split, config.episodes, config.seed, guard) for each in missions
    ]
    return missions + guard_missions(missions, config.guard, guard)


def _check_unseen(run: TrainedRun, mission: MissionSpec) -> None:
    """Check that a run was trained on no query of a mission: it learned to have them answered."""
    seen = set(run.train_queries)
    if both := [query.text for query in mission.played if query.text in seen]:
        to_do = (
            "take them out, or train without them; a run that was trained with guard queries has "
            "its own, which are played where --guard-queries is left out"
            if mission.guard_of
            else "evaluate with the queries, --held-out and --split-seed of the run, or on others"
        )
        raise UserError(
            f"{len(both)} of the {len(mission.played)} queries of mission {mission.name!r} were "
            f"trained on by the run {str(run.path)!r}, such as {both[0]!r}: {to_do}"
        )


@dataclass(frozen=True, kw_only=True)
class Mission:
    """A mission that can be played."""

    spec: MissionSpec
    roles: Roles
    context: EpisodeContext
    policies: dict[str, PolicySource] = field(default_factory=dict, repr=False)
    """By name: made once, for a user's file may change; those that are fitted are added later. A
    mission of guard queries shares them with the mission it is of."""

    def settings(self) -> dict[str, Any]:
        """What missions.json holds of it: its settings by their flags, its models known."""
        target, mutator, judge = self.roles.target, self.roles.mutator, self.roles.judge
        spec = replace(self.spec, target_model=target, mutator_model=mutator, judge_model=judge)
        return {flag: value for flag, value in resolved(spec).items() if value is not None}

    @property
    def _guard_weight(self) -> float:
        return self.spec.given.guard_weight if self.spec.guard_of else 0.0

    def record(self, split: str) -> dict[str, Any]:
        """What results.json holds of it; `split` is the side of the split that is played."""
        given = self.spec.given
        questions = given.max_steps + given.asks_first
        return {
            "name": self.spec.name,
            "target_model": self.roles.target,
            "mutator_model": self.roles.mutator,
            "judge_model": self.roles.judge,
            "reward": given.reward,
            "split": None if self.spec.guard_of else split,
            "queries": len(self.spec.played),
            "queries_sha256": queries_sha256(self.spec.played),
            "max_steps": given.max_steps,
            "asks_first": given.asks_first,
            "returns": list(
                return_bounds(given.reward, given.step_cost, questions, self._guard_weight)
            ),
            "guard": self.spec.guard_of,
        }


class EpisodeKey(NamedTuple):
    """Where an agent's episode stands in the results."""

    mission: int
    team: int
    episode: int
    repeat: int
    agent: int


class Played(NamedTuple):
    """An agent's episode that was played; it can be pickled."""

    row: dict[str, Any]
    """What results.json holds of it."""
    attempt_errors: list[str]
    """See `AgentEpisode.attempt_errors`."""
    step_errors: list[str]
    """See `AgentEpisode.step_errors`."""
    transitions: list[dict[str, Any]]
    """Its lines of transitions.jsonl."""


@dataclass(frozen=True, kw_only=True)
class OpenEvaluation:
    """An evaluation that can be played."""

    inputs: EvalInputs
    connection: Connection
    missions: Sequence[Mission]
    steppers: Sequence[PolicyStepper]
    """How the policies of each team are stepped."""

    def keys(self) -> list[EpisodeKey]:
        """All agents' episodes in the order in which they begin: missions and teams take turns."""
        config = self.inputs.config
        most = max(len(mission.spec.played) for mission in self.missions)
        return [
            EpisodeKey(mission, team, episode, repeat, agent)
            for episode in range(most)
            for repeat in range(config.repeats)
            for team in range(len(self.inputs.teams))
            for mission, of_it in enumerate(self.missions)
            if episode < len(of_it.spec.played)
            for agent in range(config.agents)
        ]

    def play(self, key: EpisodeKey) -> Played:
        """Play an agent's episode, which depends on nothing but its key and the seed.

        Raises:
            StepperError: its policy cannot be stepped as the flags say.
            OllamaError: one that ends the run, such as an OutageError.
        """
        mission, team = self.missions[key.mission], self.inputs.teams[key.team]
        spec = team.agents[key.agent]
        source = mission.policies[spec.name]
        about = (mission.context.seed, "policy", team.name, key.episode, key.repeat)
        begin = partial(
            self.steppers[key.team].begin,
            source,
            derive_seed(*about, key.agent),
            group=key[:-1],
            group_seed=derive_seed(*about, 0),
        )
        query = mission.spec.played[key.episode].text
        agent = AgentEpisode(mission.context, query, key.agent, key.episode, key.repeat)
        agent.play_policy(
            begin,
            rewords_original=source.rewords_original,
            asks=spec.kind == "llm",
            again=spec.kind == "noop" and not mission.spec.guard_of,
        )
        where = key._asdict()
        del where["episode"]
        lines = [
            where
            | transition_record(
                row, key.agent, each.info, terminated=each.terminated, truncated=each.truncated
            )
            for row, each in enumerate(agent.transitions)
        ]
        row = {**key._asdict(), **agent.result(spec.short_name)}
        return Played(row, agent.attempt_errors, agent.step_errors, lines)

    def play_all(self, tick: Tick) -> Generator[Played, None, None]:
        """Play all episodes in this process, `--jobs` at once; they come back in order."""
        return iterate_parallel(self.play, self.keys(), self.inputs.config.jobs, tick)

    def digests(self) -> dict[str, str]:
        """What stands for the weights of each model that is called, by its short name.

        Raises:
            UserError: the hosts have different versions of one.
        """
        found: dict[str, str] = {}
        for mission in self.missions:
            asked = replace(self.connection, roles=mission.roles)
            found |= asked.digests(mission.spec.given.encoder, *self.inputs.models)
        return found


@contextmanager
def open_evaluation(inputs: EvalInputs, connection: Connection) -> Iterator[OpenEvaluation]:
    """Make missions and policies, and check that all can be played before anything is paid for.

    Policies that are fitted are added later, to `Mission.policies`.

    Raises:
        UserError: a model is not pulled, or a part or a policy cannot be made, or not be stepped as
            the flags say.
    """
    config = inputs.config
    missions = _make_missions(inputs, connection)
    make = partial(PolicyStepper, jobs=config.jobs, action_timeout_ms=config.action_timeout_ms)
    with closing(make(config.wrapper)) as chosen, closing(make("serial")) as serial:
        steppers = [chosen if team.asked else serial for team in inputs.teams]
        connection.check_pulled(inputs.models)
        runs = {
            name: trained_source(inputs.policies[name], run) for name, run in inputs.runs.items()
        }
        for mission in missions:
            mission.policies.update(runs)
            for team, stepper in zip(inputs.teams, steppers, strict=True):
                for spec in team.agents:
                    with as_user_error(ValueError):
                        stepper.check(_source(mission, spec, connection))
        yield OpenEvaluation(
            inputs=inputs, connection=connection, missions=missions, steppers=steppers
        )


def _make_missions(inputs: EvalInputs, connection: Connection) -> list[Mission]:
    """The missions with their models and parts; those that name one encoder share it."""
    config = inputs.config
    encoders: dict[str, Encoder] = {}
    host_names = dict(zip(connection.dispatcher.hosts, connection.servers, strict=True))
    missions: dict[str, Mission] = {}
    for spec in inputs.missions:
        roles = connection.roles_of(spec.server(config.server))
        name = spec.given.encoder
        if name not in encoders:
            encoders[name] = open_encoder(name, connection.dispatcher, config.cache)
        everything = (*spec.train, *spec.played)
        rules, models = mission_parts(
            spec.given,
            connection.dispatcher,
            roles,
            spec.played,
            seed=config.seed,
            encoder=encoders[name],
            answers=answers_of(everything),
            guards=guards_of(everything),
        )
        models = replace(models, chats=chats_of(everything))
        missions[spec.name] = Mission(
            spec=spec,
            roles=roles,
            context=EpisodeContext(
                rules=rules, models=models, seed=config.seed, host_names=host_names
            ),
            policies=missions[spec.guard_of].policies if spec.guard_of else {},
        )
    return list(missions.values())


def _source(mission: Mission, spec: PolicySpec, connection: Connection) -> PolicySource:
    """A policy of the mission, made where it has none yet; one to be fitted has a stand-in."""
    if spec.kind in FITTED:
        return PolicySource(name=spec.name, make=partial(OrderedPolicy, (0,)))
    if spec.name not in mission.policies:
        mission.policies[spec.name] = make_source(
            spec,
            mutators=mission.spec.mutators,
            dispatcher=connection.dispatcher,
            seed=mission.context.seed,
        )
    return mission.policies[spec.name]


class EvalProgress(ProgressDisplay):
    """Shows on stderr how far an evaluation is, what calls fail, and what the servers do."""

    def __init__(self, monitor: CallMonitor) -> None:
        super().__init__()
        self._monitor = monitor
        self._counts: Counter[str] = Counter()
        """Of the agents' episodes that are over: their status, their steps."""

    def start(self, what: str, total: int) -> Tick:
        """Begin a part of the evaluation; call what is returned with how much of it is done."""
        self.begin(what, total, self._totals)

        def tick(done: int) -> None:
            for line in self._monitor.news():
                write_stderr(line)
            self.update(done)

        return tick

    def count(self, row: Mapping[str, Any]) -> None:
        """Count an agent's episode, as it stands in results.json."""
        outcomes = [outcome for outcome in row["outcomes"] if outcome != "stopped"]
        self._counts.update([row["status"], "episodes", *outcomes])
        self._counts.update(success=row["success"], replies=len(outcomes))

    def _totals(self) -> Status:
        """Of all policies together: the report has them apart."""
        n = self._counts
        parts = [
            f"success {percent(n['success'], n['scored'])} of {n['scored']}",
            f"refused {percent(n['refused'] + n['partial'], n['replies'])}",
            f"unscored {percent(n['unscored'], n['episodes'])}",
        ]
        outcome = " · ".join(parts) if n["episodes"] else ""
        return Status(outcome=outcome, calls=self._monitor.line())


def begin(evaluation: OpenEvaluation, session: Session) -> None:
    """Keep replies from here on, check that the models answer, and write down what it is.

    Raises:
        UserError: a model does not answer, a query is too long, or the hosts have different models.
    """
    inputs, missions = evaluation.inputs, evaluation.missions
    config, connection, folder = inputs.config, session.connection, session.folder
    session.keep_replies(evaluation.digests(), config.cache)
    for mission in missions:
        texts = [query.text for query in mission.spec.played]
        models = mission.context.models
        check_lengths(models.encoder, texts, mission.spec.given.query_set)
        if not mission.spec.guard_of:
            ask_first(models, _may_play(inputs.policies, mission.context.rules.mutators), texts)
    dialect = connection.resolve(config.server).request_field
    server = replace(config.server, ollama_host=connection.hosts, request_field=dialect)
    own = [mission for mission in missions if not mission.spec.guard_of]
    folder.write_json(QUERIES, record_queries(inputs.missions))
    folder.write_json(MISSIONS, {each.spec.name: each.settings() for each in own})
    are_data = missions_are_data([each.spec for each in own], config.played)
    session.begin(
        replace(config, server=server),
        f"{len(missions)} missions, {len(inputs.teams)} teams, "
        f"{sum(len(each.spec.played) for each in missions)} queries",
        most_calls=inputs.most_calls,
        copied=COPIED if are_data else COPIED - {"mission"},
    )


def _may_play(policies: Mapping[str, PolicySpec], mutators: Sequence[Mutator]) -> list[Mutator]:
    """The mutators that policies may play; where all policies are fixed, those they name."""
    if all(spec.kind in {"noop", "fixed"} for spec in policies.values()):
        return [mutator for mutator in mutators if f"fixed:{mutator.name}" in policies]
    return list(mutators)


def run(
    evaluation: OpenEvaluation,
    folder: RunFolder,
    progress: EvalProgress,
    play_all: Callable[[Tick], Generator[Played, None, None]],
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
        for played in stack.enter_context(closing(play_all(tick))):
            if lines:
                for line in played.transitions:
                    lines.write(line)
                lines.flush()
            for error in filter(None, played.attempt_errors):
                progress.complain(error)
            limit.add(played.step_errors)
            if not evaluation.missions[played.row["mission"]].spec.guard_of:
                progress.count(played.row)
            rows.append(played.row)
    limit.check()
    return {
        "seed": config.seed,
        "missions": [mission.record(config.split) for mission in evaluation.missions],
        "teams": [_team_record(team, evaluation.inputs.runs) for team in evaluation.inputs.teams],
        "fits": fits,
        "repeats": config.repeats,
        "episodes": sorted(rows, key=lambda row: [row[name] for name in EpisodeKey._fields]),
    }


def _team_record(team: TeamSpec, runs: Mapping[str, TrainedRun]) -> dict[str, Any]:
    """What results.json holds of a team."""
    members = list(dict.fromkeys(spec.short_name for spec in team.agents))
    run = runs.get(team.agents[0].name) if len(members) == 1 else None
    return {
        "name": team.name,
        "members": members,
        "trained_on": run and run.target_model,
        "baseline": team.rank,
        "asked": team.asked,
        **({"seeds_of": team.seeds_of} if team.seeds_of else {}),
    }


def _fit_all(evaluation: OpenEvaluation, progress: EvalProgress) -> list[dict[str, Any]]:
    """Fit every policy that has to be on each mission; the missions get them.

    Returns:
        What results.json holds of the fits.
    """
    inputs = evaluation.inputs
    config = inputs.config
    wanted = [
        (number, spec)
        for number, mission in enumerate(evaluation.missions)
        if not mission.spec.guard_of
        for spec in inputs.fitted
    ]
    if not wanted:
        return []
    at_once = min(config.jobs, len(wanted))

    def fit(item: tuple[int, PolicySpec]) -> Fit:
        number, spec = item
        mission = evaluation.missions[number]
        fitting = Fitting(
            spec.name,
            mission.context,
            [query.text for query in mission.spec.train],
            calls=inputs.fit_calls,
            jobs=config.jobs // at_once,
            max_unscored=config.max_unscored,
            seed=derive_seed(config.seed, "fit", spec.name),
        )
        return fit_policy(spec.kind, fitting)

    tick = progress.start("policies fitted", len(wanted))
    found = []
    with closing(iterate_parallel(fit, wanted, at_once, tick)) as fits:
        for (number, spec), (source, result) in zip(wanted, fits, strict=True):
            evaluation.missions[number].policies[spec.name] = source
            found.append({"mission": number, **result})
    return found
