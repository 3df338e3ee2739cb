"""The README's examples that need no server run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
