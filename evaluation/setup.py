"""What an evaluation is made of once the servers are known: missions with their models, and episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from envs.episode import Transition, derive_seed, transition_record
from envs.query_mutation import QueryMutationEnv
from evaluation.config import EvalConfig, MissionQueries, MissionSpec
from evaluation.episodes import EpisodeRun, Ground
from evaluation.jobs import Jobs
from evaluation.policies.baselines import FixedSource
from evaluation.policies.policy import PolicySource
from evaluation.policies.specs import FITTED
from evaluation.teams import Fitted, TeamSpec, fits_needed, models_asked
from evaluation.wrappers.errors import WrapperError
from evaluation.wrappers.players import make_player
from evaluation.wrappers.wrapper import Wrapper, make_wrapper
from ollama_utils.connect import Connection, Roles
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.types import short_name
from records.errors import UserError
from train.mission import mission_parts, open_encoder

Sources = Mapping[tuple[int, int], Sequence[PolicySource]]
"""By mission and team, the source of each agent's policy."""


@dataclass(frozen=True, kw_only=True)
class Mission:
    """A mission that can be played."""

    spec: MissionSpec
    queries: MissionQueries
    roles: Roles
    ground: Ground
    policies: dict[str, PolicySource] = field(default_factory=dict, repr=False)
    """The sources of the policies that need no fitting, by name: made once, for a user's file may change."""

    def record(self) -> dict[str, Any]:
        """What results.json says of it."""
        return {
            "name": self.spec.name,
            "target_model": self.roles.target,
            "mutator_model": self.roles.mutator,
            "judge_model": self.roles.judge,
            "reward": self.spec.given.reward,
            "split": self.queries.split,
            "queries": len(self.queries.played),
            "queries_sha256": self.queries.sha256,
        }


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an episode stands in the results."""

    mission: int
    team: int
    episode: int


def make_missions(
    config: EvalConfig,
    specs: Sequence[MissionSpec],
    queries: Sequence[MissionQueries],
    connection: Connection,
) -> list[Mission]:
    """The missions with their models and parts; those that name one encoder share it.

    Raises:
        UserError: a model is not pulled, or a part cannot be made.
    """
    encoders: dict[str, Encoder] = {}
    names = dict(zip(connection.dispatcher.hosts, connection.servers, strict=True))
    missions = []
    for spec, of_spec in zip(specs, queries, strict=True):
        roles = connection.roles_of(spec.server(config.server))
        name = spec.given.encoder
        if name not in encoders:
            encoders[name] = open_encoder(name, connection.dispatcher, config.cache)
        env_config, parts = mission_parts(
            spec.given, connection.dispatcher, roles, of_spec.played, config.seed, encoders[name]
        )
        env = QueryMutationEnv(env_config, **parts)
        ground = Ground(rules=env.rules, answer=env.answerer.answer, seed=config.seed, names=names)
        missions.append(Mission(spec=spec, queries=of_spec, roles=roles, ground=ground))
    return missions


def check_models(models: Sequence[str], connection: Connection) -> None:
    """Check that models that policies ask are pulled.

    Raises:
        UserError: one is not.
    """
    for model in models:
        if short_name(model) not in connection.available:
            have = ", ".join(connection.available)
            raise UserError(f"policy 'llm:{model}' asks a model that is not pulled; there is {have}")


def digests_of(missions: Sequence[Mission], models: Sequence[str], connection: Connection) -> dict[str, str]:
    """What stands for the weights of each model that the evaluation calls, by its short name.

    Raises:
        UserError: the hosts have different versions of one.
    """
    found: dict[str, str] = {}
    for mission in missions:
        asked = replace(connection, roles=mission.roles)
        found |= asked.digests(mission.spec.given.encoder, *models)
    return found


def places(missions: Sequence[Mission], teams: int) -> list[Place]:
    """All episodes in the order in which they are opened: missions and teams take turns."""
    most = max(len(mission.queries.played) for mission in missions)
    return [
        Place(mission=m, team=k, episode=j)
        for j in range(most)
        for k in range(teams)
        for m, mission in enumerate(missions)
        if j < len(mission.queries.played)
    ]


def sources_of(
    missions: Sequence[Mission], teams: Sequence[TeamSpec], fitted: Fitted, dispatcher: Dispatcher
) -> Sources:
    """The source of each agent's policy, by mission and team.

    Raises:
        UserError: a policy cannot be made for a mission.
    """
    for m, mission in enumerate(missions):
        for team in teams:
            if not mission.policies.keys() >= _unfitted(team):
                made = team.sources(m, mission.spec.mutators, fitted, dispatcher, mission.ground.seed)
                by_name = {spec.name: source for spec, source in zip(team.seats, made, strict=True)}
                mission.policies.update({name: by_name[name] for name in _unfitted(team)})
    return {
        (m, k): [mission.policies.get(seat.name) or fitted[m, seat.name] for seat in team.seats]
        for m, mission in enumerate(missions)
        for k, team in enumerate(teams)
    }


def make_wrappers(
    config: EvalConfig, teams: Sequence[TeamSpec], report: Callable[[str], None], stack: ExitStack
) -> list[Wrapper]:
    """The wrapper of each team, closed by the stack; added baselines cost nothing, and step in place."""

    def make(name: str) -> Wrapper:
        wrapper = make_wrapper(
            name, jobs=config.jobs, action_timeout_ms=config.action_timeout_ms, report=report
        )
        stack.callback(wrapper.close)
        return wrapper

    asked_for, serial = make(config.wrapper), make("serial")
    return [serial if team.is_baseline else asked_for for team in teams]


def check_policies(
    missions: Sequence[Mission],
    teams: Sequence[TeamSpec],
    wrappers: Sequence[Wrapper],
    connection: Connection,
) -> None:
    """Check that the policies can be made, and stepped as was asked for, before anything is paid for.

    Raises:
        UserError: one cannot.
    """
    check_models(list(models_asked(teams)), connection)
    for team in teams:
        for source in team.runs.values():
            source.load()
    needed = fits_needed(teams)
    stand_ins = {(m, name): FixedSource(name=name, action=0) for m in range(len(missions)) for name in needed}
    found = sources_of(missions, teams, stand_ins, connection.dispatcher)
    for mission in missions:
        for playing in mission.policies.values():
            _check_can_be_made(playing)
    for (_, k), sources in found.items():
        try:
            wrappers[k].team(sources, range(len(sources))).close()
        except WrapperError as error:
            raise UserError(str(error)) from error


def make_episode(
    missions: Sequence[Mission],
    teams: Sequence[TeamSpec],
    wrappers: Sequence[Wrapper],
    sources: Sources,
    jobs: Jobs,
    place: Place,
) -> EpisodeRun:
    """The episode that stands in this place, ready to start."""
    mission, team = missions[place.mission], teams[place.team]
    ground, number = mission.ground, place.episode
    seeds = [derive_seed(ground.seed, "policy", team.name, number, agent) for agent in range(len(team.seats))]
    make_team = partial(wrappers[place.team].team, sources[place.mission, place.team], seeds)
    query, asking = mission.queries.played[number], team.asking
    return EpisodeRun(ground, query, number, team.names, make_team, jobs, asking)


def records(place: Place, run: EpisodeRun) -> Iterator[dict[str, Any]]:
    """The lines of transitions.jsonl of an episode: step by step, in each the agents in their order."""
    steps: list[tuple[int, int, Transition]] = [
        (row, player.agent, transition)
        for player in run.players
        for row, transition in enumerate(player.transitions)
    ]
    for row, agent, t in sorted(steps, key=lambda step: step[:2]):
        info = t.info | {"TimeLimit.truncated": t.truncated}
        yield {
            "mission": place.mission,
            "team": place.team,
            "agent": agent,
            **transition_record(row, agent, info, t.terminated or t.truncated),
        }


def _check_can_be_made(source: PolicySource) -> None:
    """Check that an instance can be made: with one seed or another, for some may fail their episodes alone.

    Raises:
        UserError: it cannot.
    """
    try:
        try:
            make_player(source, 0)
        except Exception:  # noqa: BLE001 - a policy is anybody's code
            make_player(source, 1)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"policy {source.name!r} cannot be made: {why}; change its options or its __init__"
        ) from error


def _unfitted(team: TeamSpec) -> set[str]:
    """The names of its policies that need no fitting."""
    return {name for name, spec in team.members.items() if spec.kind not in FITTED}
