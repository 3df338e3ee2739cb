"""What an evaluation is made of: what the flags amount to, missions with their models, policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from envs.episode import Transition, derive_seed
from envs.make import mission_parts
from envs.mission import open_encoder, return_bounds
from envs.transitions import transition_record
from evaluation.config import FIT_CALLS, MAY_CHANGE, EvalConfig
from evaluation.episodes import AgentEpisode, EpisodeContext
from evaluation.missions import (
    MissionQueries,
    MissionSpec,
    guard_missions,
    mission_queries,
    played_queries,
    read_guard,
    read_missions,
    recorded_missions,
    recorded_queries,
)
from evaluation.policies import OrderedPolicy, PolicySource
from evaluation.specs import FITTED, make_source
from evaluation.stepping import PolicyStepper
from evaluation.teams import (
    TeamSpec,
    check_runs,
    fits_needed,
    models_asked,
    read_teams,
    steps_trained,
)
from ollama_utils.connect import Connection, Roles
from ollama_utils.encoders import Encoder
from records.errors import UserError, as_user_error
from records.resume import check_options
from records.settings import resolved


@dataclass(frozen=True, kw_only=True)
class EvalInputs:
    """What the flags of an evaluation amount to; it can be pickled."""

    config: EvalConfig
    specs: Sequence[MissionSpec]
    """The missions; behind them, where there are guard queries, those of each with these."""
    queries: Sequence[MissionQueries]
    """(missions,)"""
    teams: Sequence[TeamSpec]

    @property
    def fit_calls(self) -> int:
        """The questions that each fit may ask."""
        return self.config.fit_calls or max(FIT_CALLS, steps_trained(self.teams))

    @property
    def most_calls(self) -> int:
        """The calls that it makes at most, those that embed and failed attempts left out."""
        agents = sum(len(team.agents) for team in self.teams)
        choices = sum(spec.kind == "llm" for team in self.teams for spec in team.agents)
        fits = len(fits_needed(self.teams)) * self.fit_calls
        total = 0
        for spec, queries in zip(self.specs, self.queries, strict=True):
            a_step = spec.given.most_calls_a_step
            episode = spec.given.max_steps * (agents * a_step + choices)
            total += len(queries.played) * self.config.repeats * episode
            total += 0 if spec.guard else fits * a_step
        return total


def read_inputs(config: EvalConfig) -> EvalInputs:
    """Read the files that the flags name, and check all that is set.

    Raises:
        UserError: something is missing, or does not fit.
    """
    specs, queries = _missions(config)
    teams = read_teams(config.policy, config.baselines, config.agents, specs)
    check_runs(teams, specs, queries)
    inputs = EvalInputs(config=config, specs=specs, queries=queries, teams=teams)
    for spec in specs if fits_needed(teams) else ():
        if inputs.fit_calls < (least := len(spec.mutators) * spec.given.max_steps):
            raise UserError(
                f"--fit-calls {inputs.fit_calls} is too few for mission {spec.name!r}: an episode "
                f"of each mutator may take {least}"
            )
    return inputs


def _missions(config: EvalConfig) -> tuple[list[MissionSpec], list[MissionQueries]]:
    """The missions with their queries; of an evaluation that is resumed, those that it has."""
    if config.resume:
        check_options(config, config.resume, MAY_CHANGE, run_dir=config.run_dir)
        specs = recorded_missions(config.resume)
        specs += guard_missions(specs, config.guard) if config.guard.guard_queries else []
        return specs, recorded_queries(config.resume, specs)
    specs = read_missions(config.mission, config.played, config.server)
    if steps := config.steps:
        specs = [replace(spec, given=replace(spec.given, max_steps=steps)) for spec in specs]
    guard = read_guard(config.guard)
    draw = partial(mission_queries, guard=guard)
    queries = [draw(spec, config.split, config.episodes, config.seed) for spec in specs]
    if guard:
        queries += [played_queries(guard, guard)] * len(specs)
        specs += guard_missions(specs, config.guard)
    return specs, queries


@dataclass(frozen=True, kw_only=True)
class Mission:
    """A mission that can be played."""

    spec: MissionSpec
    queries: MissionQueries
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

    def record(self) -> dict[str, Any]:
        """What results.json holds of it."""
        given = self.spec.given
        return {
            "name": self.spec.name,
            "target_model": self.roles.target,
            "mutator_model": self.roles.mutator,
            "judge_model": self.roles.judge,
            "reward": given.reward,
            "split": self.queries.split,
            "queries": len(self.queries.played),
            "queries_sha256": self.queries.sha256,
            "max_steps": given.max_steps,
            "returns": list(return_bounds(given.reward, given.step_cost, given.max_steps)),
            "guard": self.spec.guard,
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

    key: EpisodeKey
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
    missions: Sequence[Mission]
    steppers: Sequence[PolicyStepper]
    """How the policies of each team are stepped."""

    def keys(self) -> list[EpisodeKey]:
        """All agents' episodes in the order in which they begin: missions and teams take turns."""
        config = self.inputs.config
        most = max(len(mission.queries.played) for mission in self.missions)
        return [
            EpisodeKey(mission, team, episode, repeat, agent)
            for episode in range(most)
            for repeat in range(config.repeats)
            for team in range(len(self.inputs.teams))
            for mission, of_it in enumerate(self.missions)
            if episode < len(of_it.queries.played)
            for agent in range(config.agents)
        ]

    def play(self, key: EpisodeKey) -> Played:
        """Play an agent's episode, which depends on nothing but its key and the seed.

        Raises:
            StepperError: its policy cannot be stepped as the flags say.
            OllamaError: one that ends the run, such as an OutageError.
        """
        mission, team = self.missions[key.mission], self.inputs.teams[key.team]
        context, spec = mission.context, team.agents[key.agent]
        source = mission.policies[spec.name]
        about = (context.seed, "policy", team.name, key.episode, key.repeat)
        begin = partial(
            self.steppers[key.team].begin,
            source,
            derive_seed(*about, key.agent),
            group=key[:-1],
            group_seed=derive_seed(*about, 0),
        )
        query = mission.queries.played[key.episode]
        agent = AgentEpisode(context, query, key.agent, key.episode, key.repeat)
        rewords_original = getattr(source, "rewords_original", False)
        agent.play(begin, rewords_original=rewords_original, asks=spec.kind == "llm")
        guard = {"guard": True} if mission.spec.guard else {}
        return Played(
            key=key,
            row={**key._asdict(), **agent.result(spec.short_name)},
            attempt_errors=agent.attempt_errors,
            step_errors=agent.step_errors,
            transitions=[_line(key, *row) | guard for row in enumerate(agent.transitions)],
        )


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
        connection.check_pulled(models_asked(inputs.teams))
        for team, stepper in zip(inputs.teams, steppers, strict=True):
            for source in team.runs.values():
                source.load()
            for mission in missions:
                with as_user_error(ValueError):
                    _add_policies(mission, team, stepper, connection)
        yield OpenEvaluation(inputs=inputs, missions=missions, steppers=steppers)


def _make_missions(inputs: EvalInputs, connection: Connection) -> list[Mission]:
    """The missions with their models and parts; those that name one encoder share it."""
    config = inputs.config
    encoders: dict[str, Encoder] = {}
    host_names = dict(zip(connection.dispatcher.hosts, connection.servers, strict=True))
    missions: dict[str, Mission] = {}
    for spec, queries in zip(inputs.specs, inputs.queries, strict=True):
        roles = connection.roles_of(spec.server(config.server))
        name = spec.given.encoder
        if name not in encoders:
            encoders[name] = open_encoder(name, connection.dispatcher, config.cache)
        rules, models = mission_parts(
            spec.given,
            connection.dispatcher,
            roles,
            queries.played,
            seed=config.seed,
            encoder=encoders[name],
            answers=queries.answers,
        )
        models = replace(models, chats=queries.chats)
        missions[spec.name] = Mission(
            spec=spec,
            queries=queries,
            roles=roles,
            context=EpisodeContext(
                rules=rules, models=models, seed=config.seed, host_names=host_names
            ),
            policies=missions[spec.guard_of].policies if spec.guard_of else {},
        )
    return list(missions.values())


def _add_policies(
    mission: Mission, team: TeamSpec, stepper: PolicyStepper, connection: Connection
) -> None:
    """Make a team's policies that the mission does not have yet and that need no fitting."""
    for spec in team.agents:
        if spec.kind in FITTED:
            stepper.check(OrderedPolicy(name=spec.name, order=(0,)))  # stands in for it
            continue
        if spec.name not in mission.policies:
            mission.policies[spec.name] = team.runs.get(spec.name) or make_source(
                spec,
                mutators=mission.spec.mutators,
                dispatcher=connection.dispatcher,
                seed=mission.context.seed,
            )
        stepper.check(mission.policies[spec.name])


def _line(key: EpisodeKey, row: int, transition: Transition) -> dict[str, Any]:
    """A line of transitions.jsonl."""
    info, terminated, truncated = transition.info, transition.terminated, transition.truncated
    about = {"mission": key.mission, "team": key.team, "repeat": key.repeat, "agent": key.agent}
    record = transition_record(row, key.agent, info, terminated=terminated, truncated=truncated)
    return {**about, **record}


def digests_of(
    missions: Sequence[Mission], models: Sequence[str], connection: Connection
) -> dict[str, str]:
    """What stands for the weights of each model that the evaluation calls, by its short name.

    Raises:
        UserError: the hosts have different versions of one.
    """
    found: dict[str, str] = {}
    for mission in missions:
        asked = replace(connection, roles=mission.roles)
        found |= asked.digests(mission.spec.given.encoder, *models)
    return found
