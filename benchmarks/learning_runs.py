"""The runs behind docs/learning.md: one training and its evaluations, for a persona and a seed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from benchmarks.values import Game, Solution
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.simulator.personas.world import load_persona

PERSONAS = Path(__file__).parent / "personas"
FITTED = ("best_fixed", "ucb1", "epsilon_greedy", "exp3")
"""Baselines that are fitted on as many target calls as PPO is trained on."""
UNFITTED = ("noop", "random", "round_robin")
PACKAGES = ("benchmarks", "envs", "mutators", "ollama_utils", "scorers", "search", "train")
_CODE = {".py", ".toml", ".json", ".csv"}


@dataclass(frozen=True, kw_only=True)
class World:
    """A persona of the simulator."""

    name: str
    persona: str | None
    """Its file; None is the shipped one."""

    @property
    def flags(self) -> tuple[str, ...]:
        """How a command is told of it."""
        server = ("--ollama-host", "embedded", "--slots", "16", "--time-scale", "0")
        return server if self.persona is None else (*server, "--persona", self.persona)


WORLDS = (World(name="cautious", persona=None), World(name="wary", persona=str(PERSONAS / "wary.toml")))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is run."""

    steps: int = 29_696
    """Steps of a training run: as many target calls at most, for equal questions are one call."""
    seeds: int = 5
    agents: int = 10
    """Episodes of each held-out query."""
    training_agents: int = 4
    """Episodes of each training query, which PPO alone plays."""
    episodes: int | None = None
    """Queries of each side; None: all."""
    work: Path = Path("runs/learning")


def check_made_of(plan: Plan) -> None:
    """Check that the runs that are there are of this code and this plan; the first ones write it down.

    Raises:
        SystemExit: they are not.
    """
    file, asked = plan.work / "made_of.json", asdict(plan) | {"code": _code(), "work": str(plan.work)}
    asked.pop("seeds")  # more seeds may be added
    if not file.exists() and not list(plan.work.glob("*/config.toml")):
        plan.work.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asked, indent=1) + "\n", encoding="utf-8")
    elif not file.exists() or json.loads(file.read_text(encoding="utf-8")) != asked:
        raise SystemExit(f"the runs in {plan.work} were made by other code or another plan: move them away")


def _code() -> str:
    """A digest of all code and data of the project."""
    root = Path(__file__).resolve().parents[1]
    files = [path for package in PACKAGES for path in (root / package).rglob("*") if path.suffix in _CODE]
    return blake2b(b"".join(sorted(path.read_bytes() for path in files)), digest_size=16).hexdigest()


def measure(plan: Plan, world: World, seed: int) -> dict[str, Any]:
    """Train, evaluate on the held-out queries beside every baseline, and on the training queries alone.

    Returns:
        The world's name, the seed, `curve` (steps and returns), and for both sides the queries and each
        team's returns and successes, (queries, agents) nested lists.
    """
    run = plan.work / f"{world.name}-{seed}"
    _finish(
        run / "summary.json",
        ["train", *world.flags, "--num-env-steps", str(plan.steps), "--seed", str(seed)],
        world,
        plan,
    )
    fit = ("--fit-calls", str(plan.steps))
    teams = [flag for name in (*FITTED, *UNFITTED) for flag in ("-p", name)]
    held = _evaluation(plan, world, run, seed, "held-out", [*teams, *fit], plan.agents)
    own = _evaluation(plan, world, run, seed, "train", ["--baselines", ""], plan.training_agents)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    points = [
        (row["step"], row["rollout/return"]) for row in map(json.loads, lines) if "rollout/return" in row
    ]
    return {"world": world.name, "seed": seed, "curve": points, "held-out": held, "train": own}


def solve(world: World, queries: Sequence[str]) -> list[Solution]:
    """What the best, the random and every fixed policy are worth on these queries."""
    game = Game(persona=load_persona(world.persona), mutators=load_mutators(DEFAULT_MUTATORS))
    return [game.solve(query) for query in queries]


def _evaluation(
    plan: Plan, world: World, run: Path, seed: int, split: str, more: Sequence[str], agents: int
) -> dict[str, Any]:
    folder = run.with_name(f"{run.name}-{split}")
    few = () if plan.episodes is None else ("--episodes", str(plan.episodes))
    told = ("eval", "-p", str(run), *world.flags, "--split", split, "--agents", str(agents), *few, *more)
    _finish(folder / "results.json", [*told, "--seed", str(seed)], world, plan)
    return _by_team(json.loads((folder / "results.json").read_text(encoding="utf-8")))


def _by_team(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns and successes of each team, by query; the trained policy is called PPO."""
    names = ["PPO" if team["trained_on"] else team["name"] for team in results["teams"]]
    queries = [each["query"] for each in results["episodes"] if each["team"] == 0]
    teams: dict[str, dict[str, list[list[float]]]] = {name: {"return": [], "success": []} for name in names}
    for episode in results["episodes"]:
        scored = [agent for agent in episode["agents"] if agent["status"] == "scored"]
        for key, values in teams[names[episode["team"]]].items():
            values.append([float(agent[key]) for agent in scored])
    return {"queries": queries, "teams": teams}


def _finish(result: Path, arguments: Sequence[str], world: World, plan: Plan) -> None:
    """Run a command that ends with the file `result`, or go on with it; not where it has ended already.

    Raises:
        subprocess.CalledProcessError: the command failed; what it said stands on stderr.
    """
    if result.exists() and json.loads(result.read_text(encoding="utf-8")).get("stopped") is None:
        return
    folder, cache = result.parent, plan.work / f"cache-{world.name}"
    place = ("--resume" if (folder / "config.toml").exists() else "--run-dir", str(folder))
    command = (sys.executable, "-m", "train.cli", *arguments, "--cache", str(cache), *place)
    print("$", *command[2:], file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
