"""Where to look at a search when it is over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import execute
from tests.cli.searches import COMMANDS, WholeSearches
from tests.runs import read


@pytest.mark.parametrize("command", COMMANDS)
def test_a_search_ends_with_its_folder_and_how_to_look_at_it(
    whole: WholeSearches, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    run = whole.copy_of(command, tmp_path / "run")
    assert execute((command, "--resume", str(run), "--trust-run")) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"run folder: {run}",
        f"look at it: tensorboard --logdir {run}",
        f"        or: mutagym report {run}",
    ]
    assert execute((command, "--resume", str(run), "--trust-run", "--format", "json")) == 0
    assert json.loads(capsys.readouterr().out) == read(run, "report.json")
