"""A run folder: new or empty, its files whole or absent, and results that replace none of them."""

from __future__ import annotations

import errno
import fcntl
import json
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from cli.main import execute
from records.errors import UserError
from records.outputs import replacing
from records.run_folder import RunFolder, check_is_run
from records.settings import read_toml
from train.config import TrainConfig

Capture = pytest.CaptureFixture[str]


def test_a_folder_that_cannot_be_a_new_run_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queries.json").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        RunFolder(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        RunFolder(tmp_path / "queries.json")
    assert [path.name for path in tmp_path.iterdir()] == ["queries.json"]
    (tmp_path / "run" / "queries.json").mkdir(parents=True)
    (tmp_path / "run" / ".lock").touch()
    with pytest.raises(UserError, match="not empty"):
        RunFolder(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    for make in (Path("runs").touch, partial(Path("runs").symlink_to, "nowhere")):
        make()
        with pytest.raises(UserError, match=r"cannot be written: .* name another with --run-dir"):
            RunFolder.of("train", TrainConfig())
        Path("runs").unlink()


def test_a_folder_in_which_another_process_was_faster_is_refused_and_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def faster(path: Path, **options: bool) -> None:
        mkdir(path, **options)
        (path / "config.toml").touch()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", faster)
        with pytest.raises(UserError, match="not empty"):
            RunFolder(tmp_path / "run")
    RunFolder(tmp_path / "run", resume=True).close()


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


@pytest.mark.parametrize("name", ["transitions.jsonl", ".lock", "tb", "seed-1/metrics.jsonl"])
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
    with pytest.raises(UserError, match="not empty"):
        RunFolder(run)
    assert mine.read_text() == "x"


def test_runs_that_begin_in_the_same_second_do_not_want_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _format: "20250101-000000")
    folders = [RunFolder.of("eval", TrainConfig(seed=7)) for _ in range(3)]
    ends = [folder.path.name.removeprefix("eval-20250101-000000-7") for folder in folders]
    assert ends == ["", "-2", "-3"]
    with pytest.raises(UserError, match="is in use by another process"):
        RunFolder(folders[0].path)
    for folder in folders:
        folder.close()


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
    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        _ = part.write_text("ne") / 0
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unforeseen_error_is_one_line_and_its_traceback_a_file(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.begin({"a": 1}, simulated=True)
        line = str(folder.reported(KeyError("odd")))
    assert line == f"KeyError: 'odd' (details: {folder.path / 'error.txt'})"
    assert "KeyError: 'odd'" in (folder.path / "error.txt").read_text()


def test_a_run_on_a_share_without_locks_can_be_read(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_file: object, _kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    rows = tmp_path / "rows.jsonl"
    assert execute(["rescore", str(trained_run), "--reward", "keyword", "--out", str(rows)]) == 0
    assert rows.exists()


# --- results where the user wants them ----------------------------------------


def test_a_report_replaces_a_file_and_is_written_into_what_is_none(
    trained_run: Path, tmp_path: Path
) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    page.write_text("old")
    link.symlink_to(page)
    for place in (link, Path("/dev/null")):
        assert execute(["report", str(trained_run), "-o", str(place)]) == 0
    assert link.is_symlink()
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("report RUN", "-o"),
        ("rescore RUN", "--out"),
        ("train --trust-run --resume RUN", "--json"),
        ("replay RUN", "--json"),
        ("replay RUN", "--run-dir"),
    ],
)
def test_a_result_is_written_over_no_file_of_the_run(
    trained_run: Path, capsys: Capture, command: str, flag: str
) -> None:
    place = trained_run / ("again" if flag == "--run-dir" else "config.toml")
    before = (trained_run / "config.toml").read_bytes()
    words = command.replace("RUN", str(trained_run)).split()
    assert execute([*words, flag, str(place)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f" names {str(place)!r}, in the folder of the run" in line
    assert (trained_run / "config.toml").read_bytes() == before
