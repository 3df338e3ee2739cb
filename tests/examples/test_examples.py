"""Every example runs to its end and prints what it promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import ExitCode
from examples import (
    a2c_loop,
    evolve_prompt,
    own_mutator,
    own_policy,
    own_reward,
    select_prompt,
    slow_env,
    train_ppo,
)

RUNS: dict[str, tuple[Callable[[], object], str]] = {
    "a2c_loop": (lambda: a2c_loop.main(steps=64, lanes=2), "step 64: mean reward "),
    "evolve_prompt": (lambda: evolve_prompt.main(generations=1, panel_size=10), "seed prompt "),
    "own_mutator": (lambda: own_mutator.main(total_steps=64), "success"),
    "own_policy": (lambda: own_policy.main(episodes=2), "PoliteFirst"),
    "own_reward": (lambda: own_reward.main(total_steps=32), "success"),
    "select_prompt": (lambda: select_prompt.main(problems=10), "evaluations"),
    "slow_env": (lambda: slow_env.main(64, num_lanes=2, most_s=0.001), " s of steps took "),
    "train_ppo": (lambda: train_ppo.main(total_steps=64, num_lanes=2), "ep_rew_mean"),
}
"""How each runs, and what it prints."""


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    example, expected = RUNS[name]
    assert not example()
    assert expected in capsys.readouterr().out


def test_an_example_whose_command_fails_ends_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_mutator.main(total_steps=-1) == ExitCode.USER_ERROR


def test_every_example_is_run_and_short() -> None:
    folder = Path(__file__).parents[2] / "examples"
    files = {path.stem: path for path in folder.glob("*.py") if path.stem != "__init__"}
    assert files.keys() == RUNS.keys()
    for name, path in files.items():
        assert len(path.read_text("utf-8").splitlines()) < 40, name
