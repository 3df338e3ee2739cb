"""`mutagym eval` with a user's own policies: some cannot be made, or their file changes meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.evaluation.evaluations import FLAGS, episodes_of, evaluate

UNMADE = '''
class Shy:
    """Wants a rate."""
    def __init__(self, mutators, seed, rate):
        if rate > 1:
            raise ValueError("rate must be\\nat most 1")
    def step(self, view):
        return 0

class Exits(Shy):
    def __init__(self, mutators, seed):
        raise SystemExit(3)

class Odd(Shy):
    """Cannot be made with every second seed."""
    def __init__(self, mutators, seed):
        if seed % 2 == {bad}:
            raise ValueError("not with this seed")
'''
CHANGES = '''
from pathlib import Path

class Changes:
    """Saves something else in its place as soon as it is made."""
    def __init__(self, mutators, seed):
        Path(__file__).write_text("1 / 0")
    def step(self, view):
        return 0
'''


@pytest.mark.parametrize(
    ("wrapper", "policy", "says"),
    [
        ("thread", "Exits", ["mine.py:Exits' cannot be made", "SystemExit(3)"]),
        ("process", "Shy,rate=2", ["mine.py:Shy,rate=2' cannot be made: ValueError: rate must be at most 1"]),
        ("auto", "Exits", ["mine.py:Exits' cannot be made", "SystemExit(3)"]),
    ],
)
def test_a_policy_that_cannot_be_made_ends_it_before_anything_is_asked(
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wrapper: str,
    policy: str,
    says: list[str],
) -> None:
    (tmp_path / "mine.py").write_text(UNMADE.format(bad=0))
    asked, folder = simulator.stats()["calls"], tmp_path / "run"
    named = ("-p", "ucb1", "-p", f"class={tmp_path / 'mine.py'}:{policy}", "--policy-wrapper", wrapper)
    capsys.readouterr()
    assert evaluate(simulator, folder, *named) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert all(word in line for word in says), line
    assert simulator.stats()["calls"] == asked
    assert not folder.exists()


@pytest.mark.parametrize("bad", [0, 1])
def test_a_policy_that_some_seeds_make_fails_the_episodes_of_the_others_alone(
    simulator: EmbeddedServer, tmp_path: Path, bad: int
) -> None:
    (tmp_path / "mine.py").write_text(UNMADE.format(bad=bad))
    flags = ("-p", f"class={tmp_path / 'mine.py'}:Odd", "--episodes", "12")
    assert evaluate(simulator, tmp_path / "run", *flags) == 0
    episodes = episodes_of(tmp_path / "run")
    assert {episode["status"] for episode in episodes} == {"done", "failed"}
    assert all("not with this seed" in each["error"] for each in episodes if each["status"] == "failed")


def test_a_policys_file_that_is_saved_meanwhile_changes_nothing(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CHANGES)
    policies = ("-p", "ucb1", "-p", f"class={file}:Changes", "--mutators", "noop,shorten")
    flags = (*policies, "--fit-calls", "20", "--episodes", "4", "--policy-wrapper", "process")
    assert evaluate(simulator, tmp_path / "run", *flags) == 0
    assert file.read_text() == "1 / 0"
    mine = [episode for episode in episodes_of(tmp_path / "run") if episode["team"] == 1]
    assert [episode["status"] for episode in mine] == ["done"] * 4
    assert {action for episode in mine for agent in episode["agents"] for action in agent["actions"]} == {
        "noop"
    }


def test_what_a_policy_prints_is_no_part_of_the_report_and_its_error_is_told_by_its_first_line(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "class Talks:\n"
        "    def __init__(self, mutators, seed):\n"
        "        print('made')\n"
        "    def step(self, view):\n"
        "        print('stepped')\n"
        "        raise RuntimeError('one thing\\nand another')\n"
    )
    capsys.readouterr()
    teams = ("-p", f"class={tmp_path / 'mine.py'}:Talks", "-p", "noop", "--baselines", "noop")
    assert evaluate(simulator, tmp_path / "run", *teams, "--episodes", "3", "--format", "json") == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert {"made", "stepped"} <= set(shown.err.splitlines())
    assert report["problems"] == ["failed: default, mine.py:Talks: 3 x RuntimeError: one thing"]
    (compared,) = report["comparisons"]
    assert compared["queries"] == 0
    assert {compared["success"][key] for key in ("difference", "low", "high", "p", "p_holm")} == {None}


def test_a_folder_of_another_command_is_named_as_what_it_is(
    simulator: EmbeddedServer, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, played = str(trained_run), str(tmp_path / "played")
    assert evaluate(simulator, tmp_path / "played", "-p", "noop", "--episodes", "2") == 0
    capsys.readouterr()
    for command, says in (
        (("eval", "--resume", trained), f"{trained!r}, a run of `mutagym train`"),
        (("train", "--resume", played), f"{played!r}, a run of `mutagym eval`"),
        (("eval", *FLAGS, "-p", played, "--ollama-host", simulator.host), "is an evaluation; expected"),
    ):
        assert execute(command) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert says in line
