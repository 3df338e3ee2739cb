"""What an evaluation is made of once the servers are known: missions with their models, and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from envs.make import mission_parts
from envs.mission import open_encoder
from envs.query_mutation import QueryMutationEnv
from evaluation.config import EvalConfig, MissionQueries, MissionSpec
from evaluation.episodes import EpisodeContext
from evaluation.policies.baselines import FixedPolicy
from evaluation.policies.instance import make_instance
from evaluation.policies.policy import PolicySource
from evaluation.policies.specs import FITTED, make_source
from evaluation.stepping import PolicyStepper, make_stepper
from evaluation.teams import TeamSpec, models_asked
from ollama_utils.connect import Connection, Roles
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.types import short_name
from records.errors import UserError, as_user_error, describe
from records.settings import resolved


@dataclass(frozen=True, kw_only=True)
class Mission:
    """A mission that can be played."""

    spec: MissionSpec
    queries: MissionQueries
    roles: Roles
    context: EpisodeContext
    policies: dict[str, PolicySource] = field(default_factory=dict, repr=False)
    """By name: made once, for a user's file may change; those that are fitted come in when they are."""

    def settings(self) -> dict[str, Any]:
        """What missions.json holds of it: its settings by their flags, its models known."""
        roles = self.roles
        spec = replace(
            self.spec, target_model=roles.target, mutator_model=roles.mutator, judge_model=roles.judge
        )
        return {flag: value for flag, value in resolved(spec).items() if value is not None}

    def record(self) -> dict[str, Any]:
        """What results.json holds of it."""
        queries = self.queries
        guard = {"guard_queries": len(queries.guard), "guard_queries_sha256": queries.guard_sha256}
        return {
            "name": self.spec.name,
            "target_model": self.roles.target,
            "mutator_model": self.roles.mutator,
            "judge_model": self.roles.judge,
            "reward": self.spec.given.reward,
            "split": queries.split,
            "queries": len(queries.played),
            "queries_sha256": queries.sha256,
            **(guard if queries.guard else {}),
        }


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
            spec.given,
            connection.dispatcher,
            roles,
            of_spec.of_episodes,
            seed=config.seed,
            encoder=encoders[name],
        )
        env = QueryMutationEnv(env_config, **parts)
        models = replace(env.models, chats=of_spec.chats)
        context = EpisodeContext(rules=env.rules, models=models, seed=config.seed, names=names)
        missions.append(Mission(spec=spec, queries=of_spec, roles=roles, context=context))
    return missions


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


def make_steppers(
    config: EvalConfig, teams: Sequence[TeamSpec], report: Callable[[str], None], stack: ExitStack
) -> list[PolicyStepper]:
    """What steps each team, closed by the stack; added baselines cost nothing, and step in turn."""

    def make(name: str) -> PolicyStepper:
        stepper = make_stepper(
            name, jobs=config.jobs, action_timeout_ms=config.action_timeout_ms, report=report
        )
        stack.callback(stepper.close)
        return stepper

    chosen, serial = make(config.stepper), make("serial")
    return [serial if team.is_baseline else chosen for team in teams]


def make_policies(
    missions: Sequence[Mission],
    teams: Sequence[TeamSpec],
    steppers: Sequence[PolicyStepper],
    connection: Connection,
) -> None:
    """Make the policies that need no fitting; check that all can be stepped before anything is paid for.

    Raises:
        UserError: one cannot be made, or not be stepped as the flags say.
    """
    _check_models(list(models_asked(teams)), connection)
    for team in teams:
        for source in team.runs.values():
            source.load()
    for mission in missions:
        for team in teams:
            _add_policies(mission, team, connection.dispatcher)
    for mission in missions:
        for made in mission.policies.values():
            _check_can_be_made(made)
    for mission in missions:
        for team, stepper in zip(teams, steppers, strict=True):
            _check_can_be_stepped(mission.policies, team, stepper)


def _check_models(models: Sequence[str], connection: Connection) -> None:
    """Check that models that policies ask are pulled."""
    for model in models:
        if short_name(model) not in connection.available:
            have = ", ".join(connection.available)
            raise UserError(f"policy 'llm:{model}' asks a model that is not pulled; there is {have}")


def _add_policies(mission: Mission, team: TeamSpec, dispatcher: Dispatcher) -> None:
    """Make those of a team's policies that the mission does not have yet and that need no fitting."""
    mutators, seed = mission.spec.mutators, mission.context.seed
    for spec in team.agents:
        if spec.kind in FITTED or spec.name in mission.policies:
            continue
        source: PolicySource | None = team.runs.get(spec.name)
        with as_user_error(ValueError):
            mission.policies[spec.name] = source or make_source(
                spec, mutators=mutators, dispatcher=dispatcher, seed=seed
            )


def _check_can_be_made(source: PolicySource) -> None:
    """Check that an instance can be made with one seed or another: some may fail their episodes alone."""
    try:
        try:
            make_instance(source, 0)
        except Exception:  # noqa: BLE001 - a policy is anybody's code
            make_instance(source, 1)
    except Exception as error:
        raise UserError(
            f"policy {source.name!r} cannot be made: {describe(error)}; change its options or its __init__"
        ) from error


def _check_can_be_stepped(
    policies: Mapping[str, PolicySource], team: TeamSpec, stepper: PolicyStepper
) -> None:
    """Check that a team's stepper can serve its policies; a fixed one stands for what is fitted later."""
    names = [spec.name for spec in team.agents]
    stand_ins = {name: FixedPolicy(name=name, action=0) for name in names if name not in policies}
    sources = {**stand_ins, **policies}
    with as_user_error(ValueError):
        stepper.begin([sources[name] for name in names], range(len(names))).close()
