"""Every example runs to its end and prints what it promises."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from examples import (
    evolve_prompt,
    own_policy,
    own_reward,
    seed_sweep_ray,
    select_prompt,
    train_ppo,
    vector_env,
)

ROOT = Path(__file__).parents[2]
RUNS: dict[str, tuple[Callable[[], None], str]] = {
    "evolve_prompt": (lambda: evolve_prompt.main(generations=1, panel_size=10), "seed prompt "),
    "own_policy": (lambda: own_policy.main(episodes=2), "PoliteFirst"),
    "own_reward": (own_reward.main, "success"),
    "seed_sweep_ray": (lambda: seed_sweep_ray.main(seeds=2, steps=128, folder="sweep"), "seed 1: weights "),
    "select_prompt": (lambda: select_prompt.main(problems=10), "evaluations"),
    "train_ppo": (lambda: train_ppo.main(total_steps=64, num_lanes=2), "ep_rew_mean"),
    "vector_env": (lambda: vector_env.main(steps=1), "rewards ["),
}


@pytest.mark.parametrize("name", list(RUNS))
def test_an_example_runs(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "seed_sweep_ray" and find_spec("ray") is None:
        pytest.skip("the extra ray is not installed")
    monkeypatch.chdir(tmp_path)
    example, expected = RUNS[name]
    example()
    assert expected in capsys.readouterr().out


def test_every_example_is_run_and_short() -> None:
    files = {path.stem: path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__"}
    assert files.keys() == RUNS.keys()
    assert all(len(path.read_text("utf-8").splitlines()) < 50 for path in files.values())
