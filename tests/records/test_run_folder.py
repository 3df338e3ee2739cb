"""A run folder: new or empty, its files whole or absent, and results that replace none of them."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import execute
from records.errors import UserError
from records.outputs import check_cache, replacing
from records.run_folder import RecordedRun, RunFolder, check_is_run
from records.settings import read_toml
from train.config import TrainConfig


def test_a_folder_that_cannot_be_a_new_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "queries.json").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        RunFolder(tmp_path)
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder(tmp_path / "queries.json" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["queries.json"]


def test_where_there_can_be_no_runs_another_folder_is_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").touch()
    with pytest.raises(UserError, match=r"'runs' cannot be written: .*; name another with --run-d"):
        RunFolder.of("train", TrainConfig())


def test_commands_may_check_one_cache_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check_cache, [tmp_path] * 200))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_that_never_began_leaves_nothing(tmp_path: Path, *, is_there: bool) -> None:
    path = tmp_path / "run"
    if is_there:
        path.mkdir()
    with RunFolder(path) as folder:
        folder.write_json("queries.json", {})
        folder.open_lines()
    assert path.exists() is is_there
    RunFolder(path).close()


@pytest.mark.parametrize(
    "name", ["transitions.jsonl", ".lock", "checkpoints/last.pt", "tb", "seed-1/metrics.jsonl"]
)
def test_what_stands_for_another_place_is_neither_read_nor_written(
    tmp_path: Path, name: str
) -> None:
    mine, run = tmp_path / "mine.txt", tmp_path / "run"
    mine.write_text("x")
    (run / name).parent.mkdir(parents=True)
    (run / "config.toml").touch()
    (run / name).symlink_to(mine)
    for use in (partial(RunFolder, resume=True), check_is_run):
        with pytest.raises(UserError, match=rf"{name}' is a link, a pipe or a device"):
            use(run)
    (run / "config.toml").unlink()
    if "/" not in name:
        with pytest.raises(UserError, match="not empty"):
            RunFolder(run)
    assert mine.read_text() == "x"


def test_runs_that_begin_in_the_same_second_do_not_want_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _format: "20250101-000000")
    with ThreadPoolExecutor(6) as pool:
        new = partial(RunFolder.of, "eval", TrainConfig(seed=7))
        folders = [each.result() for each in [pool.submit(new) for _ in range(6)]]
    ends = (folder.path.name.removeprefix("eval-20250101-000000-7") for folder in folders)
    assert sorted(ends) == ["", "-2", "-3", "-4", "-5", "-6"]
    for folder in folders:
        folder.close()


VALUES = st.one_of(
    st.text(),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(
    st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,9}", fullmatch=True), VALUES | st.lists(VALUES))
)
def test_settings_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, object]
) -> None:
    kept = {key: value for key, value in table.items() if not key.startswith("no-")}
    with RunFolder(tmp_path_factory.mktemp("run")) as folder:
        folder.begin(kept | {"left-out": None}, simulated=True)
    assert read_toml(folder.path / "config.toml") == kept
    assert RecordedRun(folder.path).simulated


WRITER = """
import json, sys
from pathlib import Path
from records.run_folder import RunFolder
with RunFolder(Path(sys.argv[1]), resume=len(sys.argv) > 2) as folder:
    for k in range(10**6):
        folder.begin({"k": k, "text": "x" * 50_000}, simulated=True)
        folder.write_json("queries.json", {"k": k, "texts": ["y" * 50] * 2_000})
"""


def test_a_kill_at_any_moment_leaves_whole_files_and_a_folder_to_go_on_with(tmp_path: Path) -> None:
    path, chance = tmp_path / "run", random.Random(0)
    for more in ([], ["resume"], ["resume"]):
        with subprocess.Popen([sys.executable, "-c", WRITER, path, *more]) as process:  # noqa: S603 - ours
            (path / "queries.json").unlink(missing_ok=True)
            while not (path / "queries.json").exists():
                time.sleep(0.01)
            time.sleep(chance.random() / 10)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert len(read_toml(path / "config.toml")["text"]) == 50_000
        assert len(json.loads((path / "queries.json").read_text())["texts"]) == 2_000


def test_a_write_that_fails_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_text("old")

    def fail_halfway() -> None:
        with replacing(path) as part:
            part.write_text("ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unforeseen_error_is_one_line_and_its_traceback_a_file(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.begin({"a": 1}, simulated=True)
        said = folder.reported(KeyError("odd"))
    assert str(said) == f"KeyError: 'odd' (details: {folder.path / 'error.txt'})"
    assert "KeyError: 'odd'" in (folder.path / "error.txt").read_text()


# --- results where the user wants them ----------------------------------------


def say(*arguments: str | Path) -> int:
    return execute([str(argument) for argument in arguments])


def test_a_report_replaces_a_file_and_is_written_into_what_is_none(
    trained_run: Path, tmp_path: Path
) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    page.write_text("old")
    link.symlink_to(page)
    assert say("report", trained_run, "-o", link) == 0
    assert link.is_symlink()
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert say("report", trained_run, "-o", "/dev/null") == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (("report", "RUN"), "-o"),
        (("rescore", "RUN"), "--out"),
        (("train", "--trust-run", "--resume", "RUN"), "--json"),
    ],
)
def test_a_result_is_written_over_no_file_of_the_run(
    trained_run: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], flag: str
) -> None:
    place = trained_run / "config.toml"
    before = place.read_bytes()
    assert say(*(part.replace("RUN", str(trained_run)) for part in command), flag, place) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"names {str(place)!r}, in the folder of the run" in line
    assert place.read_bytes() == before
