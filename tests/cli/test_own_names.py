"""A user's project may have folders and files of our names: the command is ours all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.process import EmbeddedServer

ROOT = Path(__file__).parents[2]
POLICY = """
class First:
    def __init__(self, mutators, seed): pass
    def step(self, view): return 0
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a train.py and packages of our names, none of which may be imported."""
    (tmp_path / "train.py").write_text("raise RuntimeError('the wrong train')\n")
    for name in ("envs", "evaluation", "records", "simulator"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('the wrong {name}')\n")
    (tmp_path / "mine.py").write_text(POLICY)
    return tmp_path


def python(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process in the project's folder, which comes first on its path, as research code has it."""
    path = os.pathsep.join((str(project), str(ROOT)))
    return subprocess.run(  # noqa: S603 - our own words
        [sys.executable, *arguments],
        cwd=project,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_is_ours_whatever_stands_in_the_users_folder(
    project: Path, simulator: EmbeddedServer
) -> None:
    flags = "eval -p class=mine.py:First --baselines noop --encoder hashing --episodes 4"
    more = "--max-steps 1 --policy-wrapper process --run-dir run --target-model sim-target"
    words = [*flags.split(), *more.split(), "--ollama-host", simulator.host]
    done = python(project, "-m", "mutagym", *words)
    assert (done.returncode, done.stderr.count("the wrong")) == (0, 0), done.stderr
    assert (project / "run" / "report.json").exists()


def test_a_script_gets_our_names_after_ours_or_one_line(project: Path) -> None:
    done = python(project, "-c", "import mutagym; from train import config; print(config.__name__)")
    assert done.stdout == "train.config\n", done.stderr
    taken = "import sys; sys.modules['train'] = type(sys)('train'); import mutagym"
    done = python(project, "-c", taken)
    assert done.stderr.splitlines()[-1].startswith("ImportError: 'train' has")
