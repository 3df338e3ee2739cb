"""The teams of `mutagym eval`: each policy alone; those with a proportion share the agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation.missions import MissionQueries, MissionSpec
from evaluation.specs import FITTED, PolicySpec, assign, parse_policy
from evaluation.trained_policy import RunSource, trained_source
from records.errors import UserError, as_user_error
from records.run_folder import SUMMARY, RecordedRun
from train.policy import seed_runs


@dataclass(frozen=True, kw_only=True)
class TeamSpec:
    """What plays an episode: one policy for each agent."""

    name: str
    agents: tuple[PolicySpec, ...]
    """(agents,), the policy of each."""
    runs: Mapping[str, RunSource]
    """Those of the policies that are trained, by their names."""
    asked: bool = True
    """Whether `-p` names it; others play only for these to be compared with."""
    rank: int | None = None
    """Its place among the baselines, from 0, whoever named it; None: it is none of them."""
    seeds_of: str | None = None
    """The training of several seeds that it belongs to, where it plays the policy of one seed."""

    def record(self) -> dict[str, Any]:
        """What results.json holds of it."""
        members = list(dict.fromkeys(spec.short_name for spec in self.agents))
        is_trained = len(members) == 1 and bool(self.runs)
        return {
            "name": self.name,
            "members": members,
            "trained_on": next(iter(self.runs.values())).run.target_model if is_trained else None,
            "baseline": self.rank,
            "asked": self.asked,
            **({"seeds_of": self.seeds_of} if self.seeds_of else {}),
        }


def read_teams(
    policies: Sequence[str],
    baselines: Sequence[str],
    agents: int,
    missions: Sequence[MissionSpec],
) -> list[TeamSpec]:
    """The teams that `-p` and `--baselines` name, in this order.

    Where a mission is of guard queries, `noop` is among them: it asks them as they stand.

    Args:
        policies: the values of `-p`.
        baselines: policies that play, too, where `-p` does not name them.
        agents: agents of an episode.
        missions: where they play.

    Raises:
        UserError: a policy cannot be read, or two have one name.
    """
    mutators = tuple(dict.fromkeys(name for mission in missions for name in mission.mutators))
    with as_user_error(ValueError):
        parsed = [parse_policy(text, mutators) for text in policies]
        compared = [parse_policy(text, mutators) for text in baselines]
    mixed = [(spec.proportion, spec) for spec in parsed if spec.proportion is not None]
    alone = [spec for spec in parsed if spec.proportion is None]
    ranks = {spec.name: rank for rank, spec in enumerate(compared)}
    asked = {spec.name for spec in alone}
    if any(mission.guard for mission in missions):
        compared.append(PolicySpec(kind="noop"))
    added = {spec.name: spec for spec in compared if spec.name not in asked}
    teams = [_mixed_team(mixed, agents)] if mixed else []
    for spec in (*alone, *added.values()):
        rank, is_asked = ranks.get(spec.name), spec.name in asked
        of_it = _seed_teams(spec, agents) or [_team(spec.short_name, (spec,) * agents)]
        teams += [replace(team, asked=is_asked, rank=rank) for team in of_it]
    if not teams:
        raise UserError("no policy is named: name one with -p, as -p runs/train-... or -p random")
    for names in ([team.name for team in teams], [spec.short_name for _, spec in mixed]):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(
                f"two policies are called {twice!r}: name each once; runs need different names"
            )
    return teams


def check_runs(
    teams: Sequence[TeamSpec], missions: Sequence[MissionSpec], queries: Sequence[MissionQueries]
) -> None:
    """Check that trained policies fit the missions, and meet no query that they were trained on.

    Guard queries among them are refused whatever the split: the policy was paid for having them
    answered.

    Raises:
        UserError: a policy does not fit a mission, or was trained on one of its queries.
    """
    sources = {name: source for team in teams for name, source in team.runs.items()}
    for source in sources.values():
        seen = set(source.run.train_queries)
        for mission, of_mission in zip(missions, queries, strict=True):
            source.run.check_fits(mission.given, f"mission {mission.name!r}")
            both = [text for text in of_mission.played if text in seen]
            if not both or of_mission.split == "train":
                continue
            to_do = (
                "it learned to have them answered; take them out, or train without them"
                if mission.guard
                else "evaluate with the queries, --held-out and --split-seed of the run, or on "
                "other queries"
            )
            raise UserError(
                f"{len(both)} of the {len(of_mission.played)} queries of mission {mission.name!r} "
                f"were trained on by the run {str(source.run.path)!r}, such as {both[0]!r}: {to_do}"
            )


def fits_needed(teams: Sequence[TeamSpec]) -> dict[str, PolicySpec]:
    """The policies that are fitted before they play, by name."""
    specs = (spec for team in teams for spec in team.agents)
    return {spec.name: spec for spec in specs if spec.kind in FITTED}


def steps_trained(teams: Sequence[TeamSpec]) -> int:
    """The most steps, each a question to the target, that a run among the policies learned by."""
    runs = [source.run.path for team in teams for source in team.runs.values()]
    summaries = [RecordedRun(run).read_json(SUMMARY) for run in runs if (run / SUMMARY).is_file()]
    return max((summary.get("env_steps") or 0 for summary in summaries), default=0)


def models_asked(teams: Sequence[TeamSpec]) -> list[str]:
    """The models that policies ask, each once."""
    specs = (spec for team in teams for spec in team.agents)
    return list(dict.fromkeys(spec.arg for spec in specs if spec.kind == "llm"))


def _seed_teams(spec: PolicySpec, agents: int) -> list[TeamSpec]:
    """A team for each seed of a training of several; none where the policy is no such training."""
    folders = seed_runs(spec.arg) if spec.kind == "run" else []
    specs = [replace(spec, arg=str(folder)) for folder in folders]
    name = spec.short_name
    return [
        replace(_team(f"{name}/{each.short_name}", (each,) * agents), seeds_of=name)
        for each in specs
    ]


def _mixed_team(mixed: Sequence[tuple[float, PolicySpec]], agents: int) -> TeamSpec:
    """Policies with their proportions, as one team."""
    name = " + ".join(f"{proportion:g} {spec.short_name}" for proportion, spec in mixed)
    with as_user_error(ValueError):
        places = assign([proportion for proportion, _ in mixed], agents)
    return _team(name, tuple(mixed[place][1] for place in places))


def _team(name: str, agents: tuple[PolicySpec, ...]) -> TeamSpec:
    """A team, with what is to be read of the runs among its policies."""
    runs = {spec.name: spec for spec in agents if spec.kind == "run"}
    sources = {run: trained_source(spec) for run, spec in runs.items()}
    return TeamSpec(name=name, agents=agents, runs=sources)
