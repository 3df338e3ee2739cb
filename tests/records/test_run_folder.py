"""A run folder: new or empty, whole files, hashes without times."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from records.errors import UserError
from records.json_lines import JsonLines
from records.run_folder import RunFolder, replacing


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        RunFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_link_is_nothing_that_a_new_run_may_find(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(UserError, match="not empty"):
        RunFolder(tmp_path)
    assert not (tmp_path / "mine.txt").exists()


@pytest.mark.parametrize(
    "name", ["transitions.jsonl", ".part-config.toml", "checkpoints/last.pt", "tb/events"]
)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}' is neither a file nor a folder"):
        RunFolder(tmp_path, resume=True)


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder(tmp_path / "file" / "run")


def test_runs_that_begin_in_the_same_second_do_not_want_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _format: "20250101-000000")
    folders = [RunFolder.of("eval", resume=None, run_dir=None, seed=7) for _ in range(3)]
    names = [folder.path.name for folder in folders]
    assert names == ["eval-20250101-000000-7", "eval-20250101-000000-7-2", "eval-20250101-000000-7-3"]
    for folder in folders:
        folder.close()


def test_a_config_written_as_toml_reads_back(tmp_path: Path) -> None:
    table = {"a": 1, "b": 0.5, "c": 'say "hi"\n', "d": ["x", "é"], "e": True, "f": [], "g": "C:\\new"}
    folder = RunFolder(tmp_path / "run")
    path = folder.write_config(table | {"none": None})
    folder.close()
    assert tomllib.loads(path.read_text(encoding="utf-8")) == table


def test_a_write_that_fails_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "policy.zip"
    path.write_text("old")

    def fail_halfway() -> None:
        with replacing(path) as part:
            part.write_text("ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_hash_of_the_lines_leaves_out_the_times_and_nothing_else(tmp_path: Path) -> None:
    def hashed(name: str, *records: dict[str, object]) -> str:
        lines = JsonLines(tmp_path / name)
        for record in records:
            lines.write(record)
        lines.close()
        assert [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] == list(records)
        return lines.sha256

    first = hashed("a", {"row": 0, "not_hashed": {"total_s": 1.0}}, {"row": 1, "not_hashed": {}})
    assert hashed("b", {"row": 0, "not_hashed": {"total_s": 2.0}}, {"row": 1, "not_hashed": {}}) == first
    assert hashed("c", {"row": 1, "not_hashed": {}}, {"row": 0, "not_hashed": {}}) != first
