"""Evaluations on a simulator, and results of evaluations written by hand or drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from cli.main import execute
from scorers.correction import LabelAccuracy
from simulator.process import EmbeddedServer

MUTATORS = ("noop", "paraphrase", "shorten")
Team = Sequence[list[dict[str, Any]] | str]
"""A team's episodes in order: its agents, or the traceback the episode failed with."""
ACCURACY = LabelAccuracy(sensitivity=0.9, specificity=0.95, positives=400, negatives=400)
FLAGS = ("--target-model=sim-target", "--mutator-model=sim-mutator", "--encoder=hashing:64", "--baselines=")


def evaluate(server: EmbeddedServer, folder: Path, *flags: str) -> int:
    """The exit code of `mutagym eval` on a simulator."""
    return execute(("eval", "--ollama-host", server.host, *FLAGS, "--run-dir", str(folder), *flags))


def episodes_of(folder: Path) -> list[dict[str, Any]]:
    """What came of all episodes of an evaluation, in order."""
    episodes: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["episodes"]
    return episodes


def agent(policy: str = "noop", *, steps: int = 1, success: bool = True, **more: object) -> dict[str, Any]:
    """An agent's episode: all steps but a last successful one were refused."""
    return {
        "policy": policy,
        "status": "scored",
        "success": success,
        "return": success - 0.05 * steps,
        "steps": steps,
        "refused": steps - success,
        "partial": 0,
        "drifted": 0,
        "unscored_steps": 0,
        "errors": [],
        "calls": {"choices": 0, "rewrites": steps, "questions": steps, "verdicts": 0},
        "actions": ["noop"] * steps,
    } | more


def results(
    *teams: Mapping[str, Team],
    targets: tuple[str, ...] = ("m",),
    baselines: tuple[str, ...] = ("noop", "random", "best_fixed"),
) -> dict[str, Any]:
    """An evaluation; each of `teams` is a mission."""
    names = list(teams[0])
    return {
        "simulated": True,
        "seed": 0,
        "missions": [
            {
                "name": f"mission {k}",
                "target_model": target,
                "mutator_model": "w",
                "judge_model": None,
                "reward": "refusal",
                "split": "held-out",
                "queries": len(next(iter(of_mission.values()))),
                "queries_sha256": "0",
            }
            for k, (target, of_mission) in enumerate(zip(targets, teams, strict=True))
        ],
        "teams": [
            {
                "name": name,
                "members": members(teams[0][name]),
                "trained_on": "m" if name == "run" else None,
                "baseline": baselines.index(name) if name in baselines else None,
            }
            for name in names
        ],
        "fits": [],
        "episodes": [
            {
                "mission": i,
                "team": names.index(name),
                "episode": j,
                "query": f"query {j}",
                "status": "failed" if isinstance(episode, str) else "done",
                "error": episode if isinstance(episode, str) else "",
                "agents": [] if isinstance(episode, str) else episode,
            }
            for i, of_mission in enumerate(teams)
            for name, episodes in of_mission.items()
            for j, episode in enumerate(episodes)
        ],
    }


def members(episodes: Team) -> list[str]:
    return next(([each["policy"] for each in e] for e in episodes if not isinstance(e, str)), ["noop"])


@st.composite
def agents(draw: st.DrawFn, policy: str = "noop") -> dict[str, Any]:
    """Any agent's episode."""
    if draw(st.integers(0, 5)) == 0:
        return agent(
            policy, steps=draw(st.integers(0, 3)), success=False, status="unscored", unscored_steps=8
        )
    steps = draw(st.integers(1, 5))
    actions = draw(st.lists(st.sampled_from(MUTATORS), min_size=steps, max_size=steps))
    drifted = draw(st.integers(0, steps))
    return agent(policy, steps=steps, success=draw(st.booleans()), actions=actions, drifted=drifted)


@st.composite
def evaluations(draw: st.DrawFn) -> dict[str, Any]:
    """Any results: two missions, some teams, among them a mixed one, some episodes failed."""
    queries = draw(st.integers(1, 3))
    makes = {"noop": ("noop",) * 2, "random": ("random",) * 2, "mix": ("noop", "run"), "run": ("run",) * 2}
    names = draw(st.permutations(list(makes)))
    missions = [
        {
            name: [
                "Traceback (most recent call last):\nValueError: no"
                if draw(st.integers(0, 9)) == 0
                else [draw(agents(policy)) for policy in makes[name]]
                for _ in range(queries)
            ]
            for name in names
        }
        for _ in range(2)
    ]
    made = results(*missions, targets=("m", "n"))
    for team in made["teams"]:
        team["members"] = list(makes[team["name"]])
    return made


def full(queries: int = 40) -> dict[str, Any]:
    """An evaluation with something for every table."""
    names = ("noop", "random", "best_fixed", "run")
    missions: list[dict[str, list[list[dict[str, Any]] | str]]] = [
        {
            name: [
                [agent(name, steps=1 + (j + k) % 4, success=(j * (k + 2)) % 7 < 3 + k) for _ in range(4)]
                for j in range(queries)
            ]
            for k, name in enumerate(names)
        }
        for _ in range(2)
    ]
    missions[0]["random"][0] = "Traceback (most recent call last):\nValueError: [red]no[/red]"
    told = results(*missions, targets=("m", "llama3.2:1b"))
    fit = {"mission": 0, "policy": "best_fixed", "calls": 2000, "means": {"noop": 0.2, "shorten": 0.4}}
    return told | {"fits": [fit | {"chosen": "shorten"}]}
