"""The README's examples that need no server run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_of_a_slow_environment_learns_and_can_be_driven_by_hand() -> None:
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "LanePPO(" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own README
    assert names["model"].num_timesteps == 1024
    assert len(names["arrivals"].lanes) >= 4
    names["lanes"].close(terminate=True)


def test_the_example_of_a_search_evolves_a_prompt_and_names_the_better_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "run_evolution" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own README
    shown = capsys.readouterr().out
    assert names["results"]["best_prompt"] in shown
    assert shown.endswith("Combination(model=b)\n")


def test_the_example_of_the_hybrid_flow_ends_with_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "from_params" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own README
    assert names["flow"].rewarded_steps == 50
    assert capsys.readouterr().out.strip() in names["flow"].population.prompts
