"""Every example runs to its end and prints what it promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import ExitCode
from envs.queries import load_queries
from examples import (
    a2c_loop,
    ci_gate,
    evolve_prompt,
    own_mutator,
    own_policy,
    own_reward,
    select_prompt,
    slow_env,
    train_ppo,
    your_model,
)
from simulator.process import EmbeddedServer

SMALL = ("--queries=few.txt", "--encoder=hashing", "--num-processes=4", "--bandit-steps=4")
RUNS: dict[str, tuple[Callable[[str], object], str]] = {
    "a2c_loop": (lambda _: a2c_loop.main(steps=64, lanes=2), "step 64: mean reward "),
    "evolve_prompt": (lambda _: evolve_prompt.main(generations=1, panel_size=10), "seed prompt "),
    "own_mutator": (lambda _: own_mutator.main(total_steps=64), "success"),
    "own_policy": (lambda _: own_policy.main(episodes=2), "PoliteFirst"),
    "own_reward": (lambda _: own_reward.main(total_steps=32), "success"),
    "select_prompt": (lambda _: select_prompt.main(problems=10), "evaluations"),
    "slow_env": (lambda _: slow_env.main(64, num_lanes=2, most_s=0.001), " s of steps took "),
    "train_ppo": (lambda _: train_ppo.main(total_steps=64, num_lanes=2), "ep_rew_mean"),
    "your_model": (
        lambda host: your_model.main(host, "sim-model", *SMALL, steps=64, episodes=4),
        "noop",
    ),
}
"""How each runs on a server, and what it prints."""


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(
    name: str,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    few = [query.text for query in load_queries(None)[::25]]
    (tmp_path / "few.txt").write_text("\n".join(few), encoding="utf-8")
    example, expected = RUNS[name]
    assert not example(simulator.host)
    assert expected in capsys.readouterr().out


def test_an_example_whose_command_fails_ends_with_its_exit_code(
    simulator: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_mutator.main(total_steps=-1) == ExitCode.USER_ERROR
    assert your_model.main(simulator.host, "no-such-model") == ExitCode.USER_ERROR


@pytest.mark.parametrize(
    ("bound", "code"), [("success=0", ExitCode.DONE), ("success=0.999", ExitCode.GATE_NOT_MET)]
)
def test_the_gate_for_ci_ends_with_the_exit_code_of_eval(
    bound: str,
    code: ExitCode,
    simulator: EmbeddedServer,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--ollama-host", simulator.host, "--episodes", "4")
    assert ci_gate.main(str(trained_run), bound, *flags) == code


def test_every_example_is_run_and_short() -> None:
    folder = Path(__file__).parents[2] / "examples"
    files = {path.stem: path for path in folder.glob("*.py") if path.stem != "__init__"}
    assert files.keys() == RUNS.keys() | {"ci_gate"}
    for name, path in files.items():
        assert len(path.read_text("utf-8").splitlines()) < 40, name
