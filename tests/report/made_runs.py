"""Run folders for the tests of the report: small real runs, and copies that are changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cli.main import execute

COMMANDS = {
    "train": "--seeds 2 --num-processes 2 --num-steps 8 --num-env-steps 48 --num-mini-batch 2 "
    "--ppo-epoch 1 --encoder hashing:8 --mutators noop,shorten,add_politeness "
    "--where category=violence_words --intent-threshold 0.1",
    "eval": "-p {folder}/train --episodes 4 --fit-calls 20 --save-transitions",
    "evolve": "--population-size 4 --max-generations 2 --panel-size 6 --held-out 0.25 "
    "--elite-size 1",
    "select": "--models sim-solver-small,sim-solver-large --option n_initial=4",
    "optimize": "--steps 12 --num-candidates 2 --update-interval 4 --batch-size 4 "
    "--encoder hashing:8 --held-out 0.25",
}
SERVER = ("--ollama-host=embedded", "--slots=2", "--time-scale=0.001", "--quiet")
Change = Callable[[int, dict[str, Any]], Mapping[str, Any]]


def make_runs(folder: Path) -> None:
    """A run of each command, in a folder of its name; that of `train` is of two seeds."""
    for command, flags in COMMANDS.items():
        its = flags.format(folder=folder).split()
        assert execute([command, *its, *SERVER, "--run-dir", str(folder / command)]) == 0


def read(path: Path) -> dict[str, Any]:
    """A file of one JSON object."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def edit(path: Path, **changes: object) -> None:
    """Change keys of such a file."""
    path.write_text(json.dumps({**read(path), **changes}))


def lines_of(run: Path) -> list[dict[str, Any]]:
    """The transitions of a run; none where it keeps none."""
    path = run / "transitions.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def changed(run: Path, folder: Path, change: Change = lambda _number, line: line) -> Path:
    """A copy of a run whose transitions are changed, each given its number and itself."""
    copy = Path(shutil.copytree(run, folder / run.name))
    if lines := lines_of(run):
        texts = [json.dumps(change(number, line)) + "\n" for number, line in enumerate(lines)]
        (copy / "transitions.jsonl").write_text("".join(texts))
    return copy


def report(*runs: Path, output: Path, flags: tuple[str, ...] = ()) -> str:
    """The page that the command writes."""
    assert execute(["report", *map(str, runs), "-o", str(output), *flags]) == 0
    return output.read_text()


def data_of(page: str) -> dict[str, Any]:
    """What the page's scripts show."""
    block = page.split('<script type="application/json" id="data">')[1].split(
        "</script>", maxsplit=1
    )[0]
    data: dict[str, Any] = json.loads(block)
    return data


def chart_of(page: str, title: str) -> dict[str, Any]:
    """The only chart of a title."""
    (chart,) = (chart for chart in data_of(page)["charts"] if chart["title"] == title)
    return dict(chart)
