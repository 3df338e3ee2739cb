"""`mutagym eval` on the simulator: the same results however much runs side by side, and nothing lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer

POLICIES = '''
import threading

class First:
    """Always the first mutator."""
    def __init__(self, mutators, seed):
        self.seed = seed
    def step(self, view):
        return 0

class Fails(First):
    def step(self, view):
        if view.agent == 1 and self.seed % 2:
            raise RuntimeError(f"no idea for {view.query}")
        return 0

class Hangs(First):
    def step(self, view):
        if view.agent == 1:
            threading.Event().wait()
        return 0

class Tells(First):
    """Says what it sees."""
    def __init__(self, mutators, seed, file):
        self.file = file
    def step(self, view):
        with open(self.file, "a") as lines:
            lines.write(f"{view.original}|{view.step_count}|{view.attempt}|{view.agent}|{view.tried}\\n")
        return view.step_count
'''


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A user's file of policies."""
    path = tmp_path / "mine.py"
    path.write_text(POLICIES)
    return path


class Evaluations:
    """Runs `mutagym eval` on one simulator."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        roles = [f"--{role}-model=sim-{role}" for role in ("target", "mutator", "judge")]
        self.flags = ("--ollama-host", server.host, *roles, "--encoder", "hashing:64")
        self.runs = 0

    def run(self, *flags: str, baselines: str = "", code: int = 0) -> Path:
        """Evaluate; returns the run's folder."""
        self.runs += 1
        path = self.folder / f"run{self.runs}"
        more = ("--intent-threshold", "0.1", "--baselines", baselines, "--run-dir", str(path))
        assert execute(("eval", *self.flags, *more, *flags)) == code
        return path

    def results(self, *flags: str, baselines: str = "") -> dict[str, Any]:
        """What results.json holds."""
        return read(self.run(*flags, baselines=baselines))


def read(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((path / "results.json").read_text())
    return results


def lines(path: Path) -> list[dict[str, Any]]:
    """The transitions, without what two equal runs may tell otherwise."""
    read = map(json.loads, (path / "transitions.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "not_hashed"} for line in read]


def agents(results: Mapping[str, Any], team: int = 0, mission: int = 0) -> list[list[dict[str, Any]]]:
    """What came of each episode's agents."""
    return [e["agents"] for e in results["episodes"] if (e["mission"], e["team"]) == (mission, team)]


@pytest.fixture
def evaluate(simulator: EmbeddedServer, tmp_path: Path) -> Evaluations:
    return Evaluations(simulator, tmp_path)


EVERYTHING = (
    *("-m", "name=judged,reward=judge,max-steps=3", "-m", "name=plain,split-seed=1,max-steps=3"),
    *("-p", "random,proportion=2", "-p", "fixed:shorten,proportion=1", "-p", "ucb1", "-p", "exp3"),
    *("--agents", "3", "--episodes", "3", "--mutators", "noop,shorten,expand,synonym_replace"),
    *("--fit-calls", "20", "--save-transitions"),
)


@pytest.fixture(scope="module")
def everything(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation of all that, 16 jobs at once."""
    evaluations = Evaluations(simulator, tmp_path_factory.mktemp("everything"))
    return evaluations.run(*EVERYTHING, "--jobs", "16", baselines="noop,best_fixed")


def test_results_are_the_same_bytes_for_any_number_of_jobs(evaluate: Evaluations, everything: Path) -> None:
    one, many = evaluate.run(*EVERYTHING, "--jobs", "1", baselines="noop,best_fixed"), everything
    assert (one / "results.json").read_bytes() == (many / "results.json").read_bytes()
    assert (one / "report.json").read_bytes() == (many / "report.json").read_bytes()
    assert lines(one) == lines(many)


def test_a_mission_and_a_team_come_out_the_same_alone_and_beside_others(
    evaluate: Evaluations, everything: Path
) -> None:
    alone = evaluate.results(*EVERYTHING[2:4], "-p", "noop", *EVERYTHING[12:])
    assert agents(alone) == agents(read(everything), team=3, mission=1)


def test_there_is_one_entry_for_each_mission_team_and_query_in_this_order(evaluate: Evaluations) -> None:
    teams = ("-p", "noop", "-p", "random")
    results = evaluate.results("-m", "name=a", "-m", "name=b", *teams, "--episodes", "3")
    places = [(e["mission"], e["team"], e["episode"]) for e in results["episodes"]]
    assert places == [(m, k, j) for m in range(2) for k in range(2) for j in range(3)]
    assert [mission["queries"] for mission in results["missions"]] == [3, 3]
    assert len({e["query"] for e in results["episodes"]}) == 3


def test_each_held_out_query_is_played_once_and_fewer_are_the_first_of_all(evaluate: Evaluations) -> None:
    every = evaluate.results("-p", "noop", "--held-out", "0.05")
    few = evaluate.results("-p", "noop", "--held-out", "0.05", "--episodes", "5")
    played = [e["query"] for e in every["episodes"]]
    assert len(set(played)) == len(played) > 10
    assert [e["query"] for e in few["episodes"]] == played[:5]


def test_the_training_queries_are_played_only_where_they_are_asked_for_and_are_named_so(
    evaluate: Evaluations, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    queries = tmp_path / "queries.csv"
    queries.write_text("\n".join(["prompt", *(f"How do I cut {number} loaves?" for number in range(12))]))
    told = ("-p", "noop", "--queries", str(queries), "--held-out", "0.7")
    sides = {
        split: {e["query"] for e in evaluate.results(*told, "--split", split)["episodes"]}
        for split in ("held-out", "train")
    }
    assert sides["held-out"]
    assert not sides["held-out"] & sides["train"]
    capsys.readouterr()
    path = evaluate.run(*told, "--split", "train", "--format", "table")
    shown = capsys.readouterr().out
    assert f"{len(sides['train'])} TRAINING queries" in shown
    assert shown.endswith(f"run folder: {path}\nlook at it: mutagym report {path}\n")


def test_the_agents_of_an_episode_share_the_query_and_each_have_their_own_plan(evaluate: Evaluations) -> None:
    path = evaluate.run("-p", "fixed:paraphrase", "--agents", "3", "--episodes", "4", "--save-transitions")
    first = [line for line in lines(path) if line["row"] == 0]
    episodes = [[line for line in first if line["episode_number"] == k] for k in range(4)]
    assert all(len({step["original_query"] for step in steps}) == 1 for steps in episodes)
    assert any(len({step["mutated_query"] for step in steps}) > 1 for steps in episodes)


def test_an_agent_meets_the_same_chance_whatever_team_it_plays_in(evaluate: Evaluations) -> None:
    """So that comparisons of teams are paired."""
    mixed = ("-p", "random,proportion=1", "-p", "fixed:paraphrase,proportion=1")
    results = evaluate.results(*mixed, "-p", "fixed:paraphrase", "--agents", "2", "--episodes", "6")
    assert results["teams"][0]["members"] == ["random", "fixed:paraphrase"]
    assert [pair[1] for pair in agents(results, 0)] == [pair[1] for pair in agents(results, 1)]


def test_a_policy_sees_its_own_episode_and_an_agent_that_is_done_sits_out(
    evaluate: Evaluations, policies: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    results = evaluate.results(
        "-p", f"class={policies}:Tells,file={told}", "--agents", "3", "--episodes", "4"
    )
    steps = sum(agent["steps"] for episode in agents(results) for agent in episode)
    seen = [line.split("|") for line in told.read_text().splitlines()]
    assert len(seen) == steps
    assert all(tried == str(tuple(range(int(step)))) for _, step, _, _, tried in seen)
    assert {agent for *_, agent, _ in seen} == {"0", "1", "2"}


def test_calls_are_counted_as_they_are_asked_for_whoever_paid_for_the_reply(evaluate: Evaluations) -> None:
    results = evaluate.results(
        *("-p", "noop", "-p", "fixed:shorten", "-p", "llm:sim-judge"),
        *("--mutators", "noop,shorten", "--reward", "judge", "--agents", "2", "--episodes", "4"),
    )
    for team in range(3):
        for agent in [agent for episode in agents(results, team) for agent in episode]:
            assert agent["calls"] == {
                "choices": agent["steps"] if team == 2 else 0,
                "rewrites": agent["actions"].count("shorten"),
                "questions": agent["steps"],
                "verdicts": agent["steps"],
            }


def test_a_policy_that_raises_fails_its_episode_alone_with_its_traceback(
    evaluate: Evaluations, policies: Path
) -> None:
    results = evaluate.results(
        "-p", f"class={policies}:Fails", "-p", f"class={policies}:First", "--agents", "2", "--episodes", "12"
    )
    mine, sane = ([e for e in results["episodes"] if e["team"] == team] for team in (0, 1))
    failed = [e for e in mine if e["status"] == "failed"]
    assert 0 < len(failed) < 12
    for episode in failed:
        assert episode["error"].startswith(f'Traceback (most recent call last):\n  File "{policies}"')
        assert episode["error"].endswith(f"RuntimeError: no idea for {episode['query']}\n")
        assert episode["agents"] == []
    for episode, same in zip(mine, sane, strict=True):
        assert same["status"] == "done"
        if episode["status"] == "done":
            played = [agent | {"policy": "mine"} for agent in episode["agents"]]
            assert played == [agent | {"policy": "mine"} for agent in same["agents"]]


def test_a_policy_that_overruns_its_deadline_fails_its_episode(evaluate: Evaluations, policies: Path) -> None:
    flags = ("--policy-wrapper", "thread", "--action-timeout-ms", "50", "--agents", "2", "--episodes", "2")
    results = evaluate.results("-p", f"class={policies}:Hangs", *flags)
    assert [e["status"] for e in results["episodes"]] == ["failed", "failed"]
    assert all("PolicyTimeoutError" in e["error"] for e in results["episodes"])


def test_fits_spend_what_they_may_and_choose_what_did_best(evaluate: Evaluations) -> None:
    results = evaluate.results(
        *("-p", "ucb1", "-p", "epsilon_greedy", "-p", "best_fixed"),
        *("--mutators", "noop,shorten,expand", "--fit-calls", "150", "--episodes", "3"),
    )
    ucb1, epsilon_greedy, best_fixed = results["fits"]
    assert (ucb1["calls"], epsilon_greedy["calls"]) == (150, 150)
    assert 135 < best_fixed["calls"] <= 150
    for fit in (ucb1, best_fixed):
        assert fit["chosen"] == max(fit["means"], key=fit["means"].__getitem__)
        played = agents(results, team=[team["name"] for team in results["teams"]].index(fit["policy"]))
        assert {action for (agent,) in played for action in agent["actions"]} == {fit["chosen"]}


def test_what_stdout_holds_is_the_report_in_the_format_asked_for(
    evaluate: Evaluations, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    capsys.readouterr()
    path = evaluate.run("-p", "noop", "--episodes", "3", "--format", "json", "--json", str(file))
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads(file.read_text()) == json.loads((path / "report.json").read_text())
    assert told["simulated"] is True


def test_a_run_gives_its_mission_and_its_server_as_defaults_and_flags_override(
    trained_run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    flags = ("--baselines", "noop", "--episodes", "3", "--step-cost", "0.2", "--run-dir", str(path))
    assert execute(("eval", "-p", str(trained_run), "--trust-run", *flags)) == 0
    config = (path / "config.toml").read_text()
    assert 'encoder = "hashing"' in config
    assert "intent-threshold = 0.1" in config
    assert "step-cost = 0.2" in config
    assert read(path)["teams"][0] == {
        "name": trained_run.name,
        "members": [trained_run.name],
        "trained_on": "sim-target",
        "baseline": None,
    }


def test_a_run_is_a_mission_too(evaluate: Evaluations, trained_run: Path) -> None:
    played = evaluate.results("-m", str(trained_run), "-p", "noop", "--episodes", "3")
    assert played["missions"][0]["name"] == trained_run.name


def test_what_is_held_out_of_a_training_stays_held_out_without_its_file(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """The folder has the queries with their groups, so that the split is that of then."""
    file, host = tmp_path / "mine.csv", ("--ollama-host", simulator.host)
    rows = [f"How do I fold crane {k}?,{k // 2},{'in' if k < 60 else 'out'}" for k in range(80)]
    file.write_text("\n".join(["asked,pair,side", *rows]))
    columns = ("--prompt-column", "asked", "--group-column", "pair", "--where", "side=in")
    told = ("--queries", str(file), *columns)
    small = ("--encoder", "hashing", "--num-processes", "2", "--num-steps", "4", "--num-env-steps", "8")
    models = ("--target-model", "sim-target", "--mutator-model", "sim-mutator")
    trained = tmp_path / "trained"
    assert execute(("train", *host, *models, *small, *told, "--kept", "0.2", "--run-dir", str(trained))) == 0
    few = ("--baselines", "", *host, *models)
    by_file = ("eval", "-p", "noop", *told, "--encoder", "hashing", *few, "--run-dir", str(tmp_path / "a"))
    assert execute(by_file) == 0
    file.unlink()
    for name, flags in (("b", ("-p", str(trained))), ("c", ("-p", "noop", "-m", str(trained)))):
        assert execute(("eval", *flags, *few, "--run-dir", str(tmp_path / name))) == 0
        played = read(tmp_path / name)["missions"][0]
        assert {key: played[key] for key in ("queries", "queries_sha256")} == {
            key: read(tmp_path / "a")["missions"][0][key] for key in ("queries", "queries_sha256")
        }
