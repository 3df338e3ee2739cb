"""A run that cannot go on stops by itself: saved, with one line that says why, exit code 1."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from tests.ollama_utils.scripted import SAID, ScriptedServer


def stopped(
    server: ScriptedServer, folder: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[list[str], dict[str, Any]]:
    """A run of four lanes that stops itself: the lines it says, and its summary."""
    flags = ("--num-processes", "4", "--call-attempts", "1", "--run-dir", str(folder / "run"), *flags)
    assert execute(("train", "--ollama-host", server.host, "--target-model", "m", *flags)) == 1
    assert (folder / "run" / "policy.zip").exists()
    *earlier, line = capsys.readouterr().err.strip().splitlines()
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert line == f"mutagym: {summary['stopped']}"
    how = f"to go on: mutagym train --resume {folder / 'run'} --ollama-host {server.host}"
    assert earlier[-1] == how
    return [*earlier, line], summary


def answers(body: dict[str, Any]) -> tuple[int, object]:
    """A server with one model, which refuses everything."""
    if "model" not in body:
        return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}
    if "input" in body:
        return 200, {"model": "m", "embeddings": [[1.0, float(len(text))] for text in body["input"]]}
    return 200, SAID | {"response": "I'm sorry, but I can't help with that."}


@pytest.mark.parametrize(("num_steps", "steps", "judged"), [(64, 256, 128), (16, 64, 64)])
def test_when_nothing_can_be_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_steps: int, steps: int, judged: int
) -> None:
    def fails(body: dict[str, Any]) -> tuple[int, object]:
        return answers(body) if "model" not in body else (500, {"error": "out of memory"})

    flags = ("--encoder", "hashing:16", "--num-steps", str(num_steps), "--num-env-steps", str(steps))
    with ScriptedServer(fails) as server:
        lines, summary = stopped(server, tmp_path, capsys, *flags)
    assert f"100% of the last {judged} steps could not be scored" in lines[-1]
    assert "out of memory" in lines[-1]
    assert [line for line in lines if line.startswith("not scored: ServerFaultError")]
    assert (summary["env_steps"], summary["unscored_steps"], summary["unscored_rate"]) == (judged, judged, 1)


def test_when_the_next_query_cannot_be_embedded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an embedding there is no first observation, so there is nothing to go on with."""
    embedded = count()
    enough = 40  # embeddings that outlast the first rollout, however far one lane is ahead of the others

    def breaks_down(body: dict[str, Any]) -> tuple[int, object]:
        if "input" in body and next(embedded) >= enough:
            return 500, {"error": "out of memory"}
        return answers(body)

    flags = ("--encoder", "ollama:m", "--mutators", "noop", "--max-steps", "1", "--num-steps", "4")
    with ScriptedServer(breaks_down) as server:
        lines, summary = stopped(server, tmp_path, capsys, *flags)
    assert "could not be embedded" in lines[-1]
    assert "out of memory" in lines[-1]
    assert summary["env_steps"] > 0
    assert "Traceback" in (tmp_path / "run" / "error.txt").read_text()


def test_when_a_bandit_cannot_embed_the_training_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not begun, and begins when it is gone on with."""
    broken, embedded = [True], count()

    def breaks_down(body: dict[str, Any]) -> tuple[int, object]:
        if "input" in body and next(embedded) >= 2 and broken[0]:
            return 500, {"error": "out of memory"}
        return answers(body)

    run = tmp_path / "run"
    flags = ("--encoder", "ollama:m", "--mutators", "noop", "--num-processes", "4", "--num-env-steps", "16")
    with ScriptedServer(breaks_down) as server:
        told = ("--ollama-host", server.host, "--target-model", "m", "--call-attempts", "1")
        begin = ("train", *told, *flags, "--algorithm", "linucb", "--run-dir", str(run))
        assert execute(begin) == 1
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith("mutagym: EncodingError: texts")
        assert "out of memory" in line
        broken[0] = False
        assert execute(("train", "--resume", str(run), "--trust-run")) == 0
    assert json.loads((run / "summary.json").read_text())["env_steps"] == 16
