"""`make learning` goes on with runs of the same code and plan, and with no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.learning import Plan, check_made_of


def test_runs_of_the_same_code_and_plan_are_gone_on_with_and_more_seeds_may_be_added(tmp_path: Path) -> None:
    plan = Plan(work=tmp_path / "learning")
    for seeds in (1, 5):
        check_made_of(replace(plan, seeds=seeds))
    (plan.work / "cautious-0").mkdir()
    (plan.work / "cautious-0" / "config.toml").touch()
    check_made_of(plan)


@pytest.mark.parametrize("left", ["another plan", "other code", "nobody knows"])
def test_runs_of_others_are_not_taken_for_its_own(tmp_path: Path, left: str) -> None:
    plan = Plan(work=tmp_path)
    file = tmp_path / "made_of.json"
    if left == "nobody knows":
        (tmp_path / "cautious-0").mkdir()
        (tmp_path / "cautious-0" / "config.toml").touch()
    else:
        check_made_of(replace(plan, steps=512) if left == "another plan" else plan)
    if left == "other code":
        file.write_text(json.dumps(json.loads(file.read_text()) | {"code": "0"}))
    with pytest.raises(SystemExit, match="move them away"):
        check_made_of(plan)
