"""Run folders for the tests of the report: copies of old ones, with what a test is about."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cli.main import execute

OLD = Path(__file__).parents[1] / "fixtures" / "run_folders"


def copied(name: str, folder: Path) -> Path:
    """A copy of an old run folder."""
    return Path(shutil.copytree(OLD / name, folder / name))


def changed(run: Path, change: Callable[[int, dict[str, Any]], Mapping[str, Any]]) -> Path:
    """The run, with each of its transitions replaced; `change` is given its number and what it was."""
    path = run / "transitions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(k, line)) + "\n" for k, line in enumerate(lines)))
    return run


def report(*runs: Path, output: Path) -> str:
    """The page that the command writes."""
    assert execute(["report", *map(str, runs), "-o", str(output)]) == 0
    return output.read_text()


def data_of(page: str) -> dict[str, Any]:
    """What the page's scripts show."""
    block = page.split('<script type="application/json" id="data">')[1].split("</script>", maxsplit=1)[0]
    data: dict[str, Any] = json.loads(block)
    return data
