"""The teams of `mutagym eval`: each policy alone, and those with a proportion as one mix over the agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation.config import MissionQueries, MissionSpec
from evaluation.policies.specs import CONTEXTUAL, FITTED, KEYED, PolicySpec, assign, make_bandit, parse_policy
from evaluation.policies.trained import RunSource, run_source
from records.errors import UserError, as_user_error
from train.policy import seed_runs


@dataclass(frozen=True, kw_only=True)
class TeamSpec:
    """What plays an episode: one policy for each agent."""

    name: str
    agents: tuple[PolicySpec, ...]
    """(agents,), the policy of each."""
    runs: Mapping[str, RunSource]
    """Those of the policies that are trained, by their names."""
    is_baseline: bool = False
    """Whether it plays only for the others to be compared with: no `-p` names it."""
    rank: int | None = None
    """Its place among the baselines, from 0, whoever named it; None: it is none of them."""
    seeds_of: str | None = None
    """The training of several seeds, of one of which it is the policy."""

    @property
    def members(self) -> dict[str, PolicySpec]:
        """Its policies by name, in the order of the agents."""
        return {spec.name: spec for spec in self.agents}

    @property
    def names(self) -> list[str]:
        """What the policies of the agents are called in the tables."""
        return [short_name(spec) for spec in self.agents]

    @property
    def asking(self) -> frozenset[int]:
        """The agents whose policy is a model."""
        return frozenset(agent for agent, spec in enumerate(self.agents) if spec.kind == "llm")

    @property
    def trained_on(self) -> str | None:
        """The model its policy was trained on, where the team is one trained policy."""
        names = list(self.members)
        return self.runs[names[0]].run.target_model if names == list(self.runs) and len(names) == 1 else None

    def record(self) -> dict[str, Any]:
        """What results.json holds of it."""
        return {
            "name": self.name,
            "members": list(dict.fromkeys(self.names)),
            "trained_on": self.trained_on,
            "baseline": self.rank,
            **({"seeds_of": self.seeds_of} if self.seeds_of else {}),
        }


def read_teams(
    policies: Sequence[str], baselines: Sequence[str], agents: int, missions: Sequence[MissionSpec]
) -> list[TeamSpec]:
    """The teams that `-p` and `--baselines` name, in this order.

    Args:
        policies: the values of `-p`.
        baselines: policies that play, too, where `-p` does not name them.
        agents: agents of an episode.
        missions: where they play.

    Raises:
        UserError: a policy cannot be read, or two have one name.
    """
    specs = [(text, _parsed(text, missions)) for text in policies]
    alone = [spec for text, spec in specs if not _is_mixed(text)]
    mixed = [spec for text, spec in specs if _is_mixed(text)]
    named = {spec.name for spec in alone}
    compared = [_parsed(text, missions) for text in baselines]
    ranks = {spec.name: rank for rank, spec in enumerate(compared)}
    added = [spec for spec in compared if spec.name not in named]
    teams = [_mixed_team(mixed, agents)] if mixed else []
    for spec in (*alone, *added):
        of_it = _seed_teams(spec, agents) or [_team(short_name(spec), (spec,) * agents)]
        is_added, rank = spec.name not in named, ranks.get(spec.name)
        teams += [replace(team, is_baseline=is_added, rank=rank) for team in of_it]
    if not teams:
        raise UserError("no policy is named: name one with -p, such as -p runs/train-... or -p random")
    for names in ([team.name for team in teams], [short_name(spec) for spec in mixed]):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"two policies are called {twice!r}: name each once; runs need different names")
    return teams


def check_runs(
    teams: Sequence[TeamSpec], missions: Sequence[MissionSpec], queries: Sequence[MissionQueries]
) -> None:
    """Check that trained policies fit the missions, and meet no query that they were trained on.

    Guard queries among them are refused whatever the split: the policy was paid for having them answered.

    Raises:
        UserError: one does not, or does.
    """
    for team in teams:
        for source in team.runs.values():
            for mission, of_mission in zip(missions, queries, strict=True):
                source.run.check_fits(mission.given, f"mission {mission.name!r}")
                seen = set(source.run.train_queries)
                both = [text for text in of_mission.played if text in seen]
                if both and of_mission.split == "held-out":
                    raise UserError(
                        f"{len(both)} of the {len(of_mission.played)} queries of mission {mission.name!r} "
                        f"were trained on by the run {str(source.run.path)!r}, such as {both[0]!r}: evaluate "
                        "with the queries, --held-out and --split-seed of the run, or on other queries"
                    )
                if paid := [text for text in of_mission.guard if text in seen]:
                    raise UserError(
                        f"{len(paid)} of the {len(of_mission.guard)} guard queries were trained on by the "
                        f"run {str(source.run.path)!r}, such as {paid[0]!r}: it learned to have them "
                        "answered; take them out, or train without them"
                    )


def fits_needed(teams: Sequence[TeamSpec]) -> dict[str, PolicySpec]:
    """The policies that are fitted before they play, by name."""
    return {name: spec for team in teams for name, spec in team.members.items() if spec.kind in FITTED}


def models_asked(teams: Sequence[TeamSpec]) -> Iterator[str]:
    """The models that policies ask."""
    for team in teams:
        yield from (spec.arg for spec in team.members.values() if spec.kind == "llm")


def check_bandits(fits: Mapping[str, PolicySpec]) -> None:
    """Check the options of the policies that are to be fitted.

    Raises:
        UserError: one is out of range.
    """
    for spec in fits.values():
        if spec.kind not in ("best_fixed", *CONTEXTUAL):
            with as_user_error(ValueError):
                make_bandit(spec, arms=1, seed=0)


def _parsed(text: str, missions: Sequence[MissionSpec]) -> PolicySpec:
    mutators = dict.fromkeys(name for mission in missions for name in mission.mutators)
    with as_user_error(ValueError):
        return parse_policy(text, tuple(mutators))


def _is_mixed(text: str) -> bool:
    return any(part.strip().startswith("proportion=") for part in text.split(","))


def _seed_teams(spec: PolicySpec, agents: int) -> list[TeamSpec]:
    """A team for each seed of a training of several; none where the policy is no such training."""
    folders = seed_runs(spec.arg) if spec.kind == "run" else []
    specs = [replace(spec, arg=str(folder)) for folder in folders]
    name = short_name(spec)
    return [replace(_team(f"{name}/{short_name(each)}", (each,) * agents), seeds_of=name) for each in specs]


def _mixed_team(specs: Sequence[PolicySpec], agents: int) -> TeamSpec:
    """The policies with a proportion, as one team."""
    name = " + ".join(f"{spec.proportion:g} {short_name(spec)}" for spec in specs)
    with as_user_error(ValueError):
        places = assign([spec.proportion for spec in specs], agents)
    return _team(name, tuple(specs[place] for place in places))


def short_name(spec: PolicySpec) -> str:
    """A policy's name in the tables: of a run's folder, or a class's file, the last part alone."""
    if spec.kind not in KEYED:
        return spec.name
    return ",".join([spec.arg.rstrip("/").rpartition("/")[2], *(f"{k}={v}" for k, v in spec.kwargs.items())])


def _team(name: str, agents: tuple[PolicySpec, ...]) -> TeamSpec:
    """A team, with what is to be read of the runs among its policies."""
    runs = {spec.name: spec for spec in agents if spec.kind == "run"}
    return TeamSpec(name=name, agents=agents, runs={name: run_source(spec) for name, spec in runs.items()})
