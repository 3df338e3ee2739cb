"""What a resumed run may not be: another run, two runs, or one whose files are damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import execute
from records.run_folder import RunFolder
from simulator.process import EmbeddedServer

SMALL = ("--num-processes", "2", "--num-steps", "4", "--num-env-steps", "16", "--encoder", "hashing:16")


def server(simulator: EmbeddedServer) -> tuple[str, ...]:
    """The flags that name a server and its model."""
    return ("--ollama-host", simulator.host, "--target-model", "sim-target")


@pytest.fixture(scope="module")
def finished(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is complete."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    queries = folder.parent / "queries.txt"
    queries.write_text("".join(f"How do I fold paper crane number {k}?\n" for k in range(20)))
    told = (*server(simulator), "--queries", str(queries))
    assert execute(("train", *told, *SMALL, "--run-dir", str(folder))) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says, in one line, to what it refuses."""
    capsys.readouterr()
    assert execute(("train", *arguments)) == 2
    line, *more = [x for x in capsys.readouterr().err.splitlines() if x.startswith("mutagym: ")]
    assert not more
    return line


def test_an_option_that_a_resume_may_not_change(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table: list[tuple[tuple[str, ...], str]] = [
        (("--lr", "0.5"), "--lr is 0.5"),
        (("--no-batching",), "--use-batching is False"),
        (("--mutators", "noop"), "--mutators is ['noop']"),
        (("--where", "a=b"), "--where is ['a=b']"),
        (("--run-dir", "elsewhere"), "stays in its folder"),
        (("--num-env-steps", "8"), "16 steps are done"),
        (("--config", "mine.toml"), "cannot stand together"),
        (("--resume", "twice"), "--resume is given twice"),
    ]
    for flags, says in table:
        assert says in refusal(capsys, "--resume", str(finished), "--trust-run", *flags)


def cut_the_transitions(run: Path) -> None:
    path = run / "transitions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))


def change_what_was_written(run: Path) -> None:
    path = run / "queries.json"
    path.write_text(path.read_text().replace("paper crane number 1?", "paper crane number 99?"))


def change_a_transition(run: Path) -> None:
    path = run / "transitions.jsonl"
    path.write_text(path.read_text().replace("paper crane", "paper drone", 1))


def exchange_the_model(run: Path) -> None:
    path = run / "parts.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model sim-target": "0123"}))


def flip_a_bit(name: str, place: int) -> Callable[[Path], object]:
    def flip(run: Path) -> None:
        raw = bytearray((run / name).read_bytes())
        raw[place] ^= 0x40
        (run / name).write_bytes(raw)

    return flip


def damage(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:-999] + b"x" * 500)


def test_a_folder_that_lacks_something_or_was_changed(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table: list[tuple[Callable[[Path], object], str]] = [
        (shutil.rmtree, "expected the folder of a run"),
        (lambda run: (run / "config.toml").unlink(), "expected the folder of a run"),
        (lambda run: (run / "config.toml").write_text("lr ="), "is not a TOML file"),
        (lambda run: (run / "queries.json").write_text("{"), "queries.json"),
        (lambda run: (run / "parts.json").unlink(), "parts.json"),
        (cut_the_transitions, "has 5 whole lines; expected at least 16"),
        (change_what_was_written, "'queries' is not what the run"),
        (exchange_the_model, "'model sim-target' is not what the run"),
        (damage("checkpoints/last.pt"), "last.pt' is damaged"),
        (lambda run: os.truncate(run / "checkpoints" / "last.pt", 2**31), "last.pt' is damaged"),
        (lambda run: os.mkfifo(run / "metrics.jsonl.pipe"), "is a link, a pipe or a device"),
        (flip_a_bit("checkpoints/last.pt", 60_000), "last.pt' is damaged"),
        (flip_a_bit("checkpoints/last.pt", 3), "last.pt' is damaged"),
        (change_a_transition, "are not those that the run wrote"),
        (lambda run: (run / "replies.sqlite").write_bytes(b"x" * 5000), "replies.sqlite' cannot be used"),
    ]
    for row, (spoil, says) in enumerate(table):
        run = Path(shutil.copytree(finished, tmp_path / str(row)))
        spoil(run)
        assert says in refusal(capsys, "--resume", str(run), "--trust-run")


def test_a_mutator_file_that_was_changed(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from mutators.registry import by_rule\n\n\n@by_rule\ndef shout(query, earlier, seed):\n"
        '    """Louder."""\n    return query.upper()\n'
    )
    told = (*server(simulator), "--mutators", f"noop,{mine}:shout")
    assert execute(("train", *told, *SMALL, "--run-dir", str(tmp_path / "run"))) == 0
    mine.write_text(mine.read_text().replace("upper", "lower"))
    assert "mine.py' is not what the run" in refusal(capsys, "--resume", str(tmp_path / "run"), "--trust-run")


def test_metrics_that_were_lost_are_no_loss_to_the_run(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text()[:50])
    assert execute(("train", "--resume", str(run), "--trust-run", "--num-env-steps", "24")) == 0


def test_a_run_told_of_its_files_by_relative_paths_goes_on_from_anywhere(
    simulator: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("".join(f"How do I fold crane number {k}?\n" for k in range(9)))
    told = (*server(simulator), "--queries", "mine.txt")
    monkeypatch.chdir(tmp_path)
    assert execute(("train", *told, *SMALL, "--run-dir", "run")) == 0
    monkeypatch.chdir("/")
    assert execute(("train", "--resume", str(tmp_path / "run"), "--trust-run", "--num-env-steps", "24")) == 0
    steps = [
        json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == [8, 16, 24]


def test_a_run_that_cannot_begin_leaves_no_folder(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "run"
    told = (*server(simulator), "--encoder", " ", "--run-dir", str(where))
    assert "no encoder" in refusal(capsys, *told)
    assert not where.exists()


def test_two_processes_cannot_write_one_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunFolder(run, resume=True):
        assert "is in use by another process" in refusal(capsys, "--resume", str(run), "--trust-run")
    assert execute(("train", "--resume", str(run), "--trust-run")) == 0


def test_a_new_run_does_not_begin_where_another_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not empty" in refusal(capsys, *SMALL, "--run-dir", str(run))


def test_a_folder_that_cannot_be_made(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    where = str(tmp_path / "file" / "run")
    assert "cannot be written" in refusal(capsys, *server(simulator), *SMALL, "--run-dir", where)
