"""`--cache DIR`: what one run asked, a later one on the same server does not; the result is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.runs import resume, summary, train

SMALL = ("--num-processes", "2", "--num-steps", "8", "--encoder", "hashing:16", "--ppo-epoch", "2")


def run(host: str, folder: Path, cache: Path, steps: int = 32) -> dict[str, Any]:
    """A small run; its summary."""
    flags = ("--target-model", "sim-target", "--cache", str(cache), "--num-env-steps", str(steps))
    assert train(host, folder, *SMALL, *flags) == 0
    return summary(folder)


class Cached(NamedTuple):
    """A cache, and the summary of the run that filled it."""

    cache: Path
    first: dict[str, Any]


@pytest.fixture(scope="module")
def cached(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Cached:
    folder = tmp_path_factory.mktemp("cached")
    return Cached(folder / "cache", run(simulator.host, folder / "run", folder / "cache"))


def test_a_second_run_asks_nothing_and_ends_the_same(
    simulator: EmbeddedServer, cached: Cached, tmp_path: Path
) -> None:
    first = cached.first
    simulator.reset_stats()
    second = run(simulator.host, tmp_path / "run", cached.cache)
    assert simulator.stats()["calls"] == second["llm_calls"] == 0
    assert second["cache_hits"] == first["llm_calls"] + first["cache_hits"]
    assert not (cached.cache / "replies.sqlite").exists()  # the cache may be another run's folder
    for name in ("transitions_sha256", "weights_sha256"):
        assert first[name] == second[name]


def test_a_run_whose_replies_came_from_a_cache_is_resumed_without_it(
    simulator: EmbeddedServer, cached: Cached, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(simulator.host, folder, cached.cache, steps=16)
    assert resume(folder, "--num-env-steps", "32") == 0
    assert summary(folder)["weights_sha256"] == cached.first["weights_sha256"]


def test_another_server_is_asked_anew(simulator: EmbeddedServer, cached: Cached, tmp_path: Path) -> None:
    elsewhere = simulator.host.replace("127.0.0.1", "localhost")
    assert run(elsewhere, tmp_path / "run", cached.cache)["llm_calls"] == cached.first["llm_calls"]


def test_a_cache_that_cannot_be_made_is_one_line(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    flags = ("--target-model", "sim-target", *SMALL, "--cache", str(tmp_path / "file" / "cache"))
    assert train(simulator.host, tmp_path / "run", *flags) == 2
    assert "Not a directory" in capsys.readouterr().err.splitlines()[-1]


def test_hosts_with_different_versions_of_a_model_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result would depend on which host answers."""

    def host(digest: str) -> ScriptedServer:
        listed = {"models": [{"model": "m:latest", "name": "m:latest", "digest": digest}]}
        return ScriptedServer(lambda body: (200, SAID if "model" in body else listed))

    with host("a" * 64) as one, host("b" * 64) as other:
        told = ("--ollama-host", one.host, "--ollama-host", other.host, "--target-model", "m")
        assert execute(("train", *told, *SMALL, "--run-dir", str(tmp_path / "run"))) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "model 'm' is not the same at all hosts" in line
    assert f"{'a' * 12} at {one.host}" in line
