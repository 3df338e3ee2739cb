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
OUTCOMES = ("answered", "answered_other", "refused", "partial", "undetermined", "filtered")
Team = Sequence[Sequence[Mapping[str, Any]]]
"""A team's episodes in order: the rows of its agents."""
ACCURACY = LabelAccuracy(sensitivity=0.9, specificity=0.95, positives=400, negatives=400)
ROLES = ("--target-model=sim-target", "--mutator-model=sim-mutator")
FLAGS = (*ROLES, "--encoder=hashing:64", "--baselines=")
CRASH = "Traceback (most recent call last):\nValueError: no\n"
TARGETS = ("m", "n")


def evaluate(server: EmbeddedServer, folder: Path, *flags: str) -> int:
    """The exit code of `mutagym eval` on a simulator."""
    return execute(("eval", "--ollama-host", server.host, *FLAGS, "--run-dir", str(folder), *flags))


def episodes_of(folder: Path) -> list[dict[str, Any]]:
    """All agents' episodes of an evaluation, in order."""
    episodes: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["episodes"]
    return episodes


def agent(
    policy: str = "noop", *, steps: int = 1, success: bool = True, **more: object
) -> dict[str, Any]:
    """An agent's episode: all steps but a last successful one were refused."""
    return {
        "policy": policy,
        "status": "scored",
        "error": "",
        "success": success,
        "return": success - 0.05 * steps,
        "outcomes": ["refused"] * (steps - success) + ["answered"] * success,
        "actions": ["noop"] * steps,
        "drifted": 0,
        "failed_steps": 0,
        "failed_calls": 0,
        "errors": [],
        "calls": {"choices": 0, "rewrites": steps, "questions": steps, "verdicts": 0},
    } | more


def crashed(policy: str = "noop", error: str = CRASH) -> dict[str, Any]:
    """An agent's episode whose policy raised."""
    nothing = {"outcomes": [], "actions": [], "return": 0.0, "status": "failed", "error": error}
    return agent(policy, success=False) | nothing


def unscored(policy: str = "noop", *, steps: int = 0) -> dict[str, Any]:
    """An agent's episode of which a last step failed in every attempt."""
    failed = {"failed_steps": 1, "failed_calls": 8, "errors": ["HTTPStatusError: status 500"]}
    return agent(policy, steps=steps, success=False, status="unscored") | failed


def results(
    *missions: Mapping[str, Team],
    guard: Mapping[str, Team] | None = None,
    asked: Sequence[str] = ("run",),
    baselines: Sequence[str] = ("noop", "random", "best_fixed"),
    max_steps: int = 5,
    repeats: int = 1,
) -> dict[str, Any]:
    """An evaluation as results.json has it.

    Args:
        missions: by team, what became of each episode.
        guard: the same of the guard queries of the first mission.
        asked: the teams that -p names.
        baselines: those that others are compared with, in order.
        max_steps: of an episode.
        repeats: plays of each query; a row says which play it is under `repeat`.
    """
    names = list(missions[0])
    played = [*missions, *([guard] if guard else [])]
    return {
        "simulated": True,
        "seed": 0,
        "missions": [
            {
                "name": f"mission {k}" if k < len(missions) else "mission 0 guard",
                "target_model": TARGETS[k % len(missions)],
                "mutator_model": "w",
                "judge_model": None,
                "reward": "refusal",
                "split": "held-out",
                "queries": len(next(iter(mission.values()))),
                "queries_sha256": "0",
                "max_steps": max_steps,
                "returns": [-0.25, 0.95],
                "guard": "mission 0" if k == len(missions) else None,
            }
            for k, mission in enumerate(played)
        ],
        "teams": [
            {
                "name": name,
                "members": [row["policy"] for row in missions[0][name][0]],
                "trained_on": "m" if name == "run" else None,
                "baseline": baselines.index(name) if name in baselines else None,
                "asked": name in asked,
            }
            for name in names
        ],
        "fits": [],
        "repeats": repeats,
        "episodes": [
            {
                "mission": k,
                "team": names.index(name),
                "episode": number,
                "repeat": 0,
                "agent": place,
                "query": f"query {number}",
                **row,
            }
            for k, mission in enumerate(played)
            for name, episodes in mission.items()
            for number, rows in enumerate(episodes)
            for place, row in enumerate(rows)
        ],
    }


@st.composite
def agents(draw: st.DrawFn, policy: str = "noop") -> dict[str, Any]:
    """Any agent's episode."""
    kind = draw(st.integers(0, 9))
    if kind < 2:
        return crashed(policy) if kind else unscored(policy, steps=draw(st.integers(0, 3)))
    steps = draw(st.integers(1, 5))
    some = draw(st.lists(st.sampled_from(OUTCOMES), min_size=steps, max_size=steps))
    actions = draw(st.lists(st.sampled_from(MUTATORS), min_size=steps, max_size=steps))
    failed = draw(st.integers(0, steps))
    return agent(
        policy,
        steps=steps,
        success=some[-1] == "answered",
        outcomes=some,
        actions=actions,
        drifted=draw(st.integers(0, steps)),
        failed_steps=failed,
        failed_calls=2 * failed,
    )


TEAMS = {
    "noop": ("noop",) * 2,
    "random": ("random",) * 2,
    "mix": ("noop", "run"),
    "run": ("run",) * 2,
}


@st.composite
def evaluations(draw: st.DrawFn) -> dict[str, Any]:
    """Any results: two missions, guard queries, and four teams, among them a mixed one."""
    names = draw(st.permutations(list(TEAMS)))

    def mission() -> dict[str, Team]:
        return {name: [[draw(agents(of)) for of in TEAMS[name]] for _ in counted] for name in names}

    counted = range(draw(st.integers(1, 3)))
    return results(mission(), mission(), guard=mission(), asked=("mix", "run", "random"))


def full(queries: int = 40) -> dict[str, Any]:
    """An evaluation with something for every table."""
    names = ("noop", "random", "best_fixed", "run")
    missions: list[dict[str, list[list[dict[str, Any]]]]] = [
        {
            name: [
                [
                    agent(name, steps=1 + (j + k) % 4, success=(j * (k + 2)) % 7 < 3 + k)
                    for _ in range(4)
                ]
                for j in range(queries)
            ]
            for k, name in enumerate(names)
        }
        for _ in range(2)
    ]
    missions[0]["random"][0][0] = crashed("random", CRASH.replace("no", "[red]no[/red]"))
    found = results(*missions, guard=missions[1])
    fit = {"mission": 0, "calls": 2000, "means": {"noop": 0.2, "shorten": 0.4}}
    order = [f"mutator{k}" for k in range(8)]
    found["fits"] = [
        fit | {"policy": "best_fixed", "chosen": "shorten"},
        fit | {"policy": "linucb", "chosen": None},
        fit | {"policy": "cascade", "chosen": None, "order": order},
    ]
    return found
