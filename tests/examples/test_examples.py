"""Every example runs to its end and prints what it promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import ExitCode
from examples import (
    ci_gate,
    evolve_prompt,
    own_mutator,
    own_policy,
    own_reward,
    ppo_loop,
    select_prompt,
    slow_env,
    train_ppo,
    vector_env,
    your_model,
)
from simulator.process import EmbeddedServer

ROOT = Path(__file__).parents[2]
SMALL = ("--encoder", "hashing", "--num-processes", "4", "--bandit-steps", "4")
RUNS: dict[str, tuple[Callable[[str], object], str]] = {
    "evolve_prompt": (lambda _: evolve_prompt.main(generations=1, panel_size=10), "seed prompt "),
    "own_mutator": (lambda _: own_mutator.main(total_steps=64), "success"),
    "own_policy": (lambda _: own_policy.main(episodes=2), "PoliteFirst"),
    "own_reward": (lambda _: own_reward.main(), "success"),
    "ppo_loop": (lambda _: ppo_loop.main(rollouts=1, steps=8, lanes=4), "rollout 0: mean reward "),
    "select_prompt": (lambda _: select_prompt.main(problems=10), "evaluations"),
    "slow_env": (
        lambda _: slow_env.main(total_steps=64, num_lanes=2, mean_s=0.001),
        "64 steps of 0.001 s",
    ),
    "train_ppo": (lambda _: train_ppo.main(total_steps=64, num_lanes=2), "ep_rew_mean"),
    "vector_env": (lambda _: vector_env.main(steps=1), "rewards ["),
    "your_model": (
        lambda host: your_model.main(host, "sim-model", *SMALL, steps=64, episodes=4),
        "noop",
    ),
}
"""How each runs on a server, and what it prints."""
LONGER = {"ppo_loop": 100}
"""A whole algorithm."""


@pytest.mark.parametrize("name", list(RUNS))
def test_an_example_runs(
    name: str,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    example, expected = RUNS[name]
    assert not example(simulator.host)
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    "failing",
    [
        lambda _: own_mutator.main(total_steps=-1),
        lambda _: own_policy.main(episodes=-1),
        lambda _: own_reward.main(total_steps=-1),
        lambda host: your_model.main(host, "no-such-model"),
        lambda host: your_model.main(host, "sim-model", "--queries", "no-such-file.csv"),
    ],
)
def test_an_example_whose_command_fails_ends_with_its_exit_code(
    failing: Callable[[str], int],
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failing(simulator.host) == failing(simulator.host) == ExitCode.USER_ERROR


def test_a_model_of_ones_own_has_a_new_run_each_time(
    simulator: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        code = your_model.main(simulator.host, "sim-model", *SMALL, steps=16, episodes=-1)
        assert code == ExitCode.USER_ERROR  # of `eval`
    assert len(list(Path("runs").glob("your-model-*/summary.json"))) == 2


@pytest.mark.parametrize(
    ("bound", "code"), [("success=0", ExitCode.DONE), ("success=0.999", ExitCode.GATE_NOT_MET)]
)
def test_the_gate_for_ci_tells_by_its_exit_code_whether_the_bound_is_kept(
    bound: str,
    code: ExitCode,
    simulator: EmbeddedServer,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_HOST", simulator.host)
    assert ci_gate.main(str(trained_run), bound, "--episodes", "4") == code
    (report,) = tmp_path.glob("runs/eval-*/report.json")
    assert json.loads(report.read_text())["gates"][0]["policy"] == trained_run.name


def test_every_example_is_run_and_short() -> None:
    files = {
        path.stem: path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__"
    }
    assert files.keys() == RUNS.keys() | {"ci_gate"}
    for name, path in files.items():
        assert len(path.read_text("utf-8").splitlines()) < LONGER.get(name, 50), name
