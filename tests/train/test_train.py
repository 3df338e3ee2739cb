"""Whole training runs on the simulator: what they leave, and that the schedule changes nothing."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from stable_baselines3.common.save_util import load_from_zip_file

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.runs import PASSES, WORLD, lines, read, train

LANES = ("--num-processes", "4", "--encoder", "hashing:64")
SMALL = (*LANES, "--num-steps", "8", "--num-env-steps", "64", "--ppo-epoch", "2")
ONE_MODEL = ("--target-model", "sim-model", "--intent-threshold", "0.1")


def run(server: EmbeddedServer, folder: Path, *flags: str) -> dict[str, Any]:
    """A small run; its summary."""
    assert train(server.host, folder, *WORLD, *SMALL, *flags) == 0
    return read(folder, "summary.json")


class Plain(NamedTuple):
    """A run without further flags, which tests only read."""

    folder: Path
    summary: dict[str, Any]
    shown: str
    """What it said on stdout."""


@pytest.fixture(scope="module")
def plain(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    folder, out = tmp_path_factory.mktemp("plain") / "run", io.StringIO()
    with redirect_stdout(out):
        summary = run(simulator, folder, "--save-interval", "1")
    return Plain(folder, summary, out.getvalue())


def test_a_run_leaves_what_its_readme_promises(plain: Plain) -> None:
    folder, summary, shown = plain
    assert {path.name for path in folder.iterdir()} == {
        *(".lock", "config.toml", "queries.json", "parts.json", "replies.sqlite", "transitions.jsonl"),
        *("metrics.jsonl", "tb", "checkpoints", "policy.zip", "summary.json"),
        *("policy.safetensors", "servers.json"),
    }
    kept = {path.name for path in (folder / "checkpoints").iterdir()}
    assert kept == {"last.pt", "policy-32.zip", "policy-32.safetensors"}
    assert load_from_zip_file(folder / "policy.zip")[1]
    steps = lines(folder)
    assert [(step["row"], step["lane"]) for step in steps] == [(r, k) for r in range(16) for k in range(4)]
    assert summary["env_steps"] == len(steps) == 64
    assert summary["unscored_rate"] == 0
    assert "first rollouts" in shown
    assert "no episode is counted" not in shown


def test_where_lanes_had_fewer_steps_than_an_episode_the_table_says_why_it_tells_no_success(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--num-processes", "4", "--num-steps", "4", "--num-env-steps", "16", "--encoder", "hashing:64")
    assert train(simulator.host, tmp_path / "run", *WORLD, *few) == 0
    summary = read(tmp_path / "run", "summary.json")
    assert summary["episodes_start"] == summary["episodes_end"] == 0
    assert "no episode is counted" in capsys.readouterr().out


WAYS = {
    "sequential": ("--no-batching",),
    "lanes, 3 calls at once": ("--max-workers", "3"),
    "lanes, one at a time": ("--max-in-flight", "1"),
    "phased": ("--schedule", "phased"),
    "phased, 3 workers": ("--schedule", "phased", "--max-workers", "3"),
}


@pytest.mark.parametrize(
    ("alone", "cold", "warm"),
    [
        (("sequential", "lanes, one at a time"), WAYS["phased, 3 workers"], WAYS["lanes, 3 calls at once"]),
        pytest.param(tuple(WAYS), (), (), marks=pytest.mark.soak),
    ],
    ids=["each once", "each alone"],
)
def test_the_schedule_the_workers_and_the_cache_change_neither_transitions_nor_weights(
    simulator: EmbeddedServer,
    plain: Plain,
    tmp_path: Path,
    alone: tuple[str, ...],
    cold: tuple[str, ...],
    warm: tuple[str, ...],
) -> None:
    cache = ("--cache", str(tmp_path / "cache"))
    ways = {name: WAYS[name] for name in alone} | {"cold": (*cold, *cache), "warm": (*warm, *cache)}
    runs = {name: run(simulator, tmp_path / name, *flags) for name, flags in ways.items()}
    for name, summary in runs.items():
        assert summary["transitions_sha256"] == plain.summary["transitions_sha256"], name
        assert summary["weights_sha256"] == plain.summary["weights_sha256"], name
        named = {"--no-batching": "sequential", "phased": "phased"}
        assert summary["schedule"] == next((named[flag] for flag in ways[name] if flag in named), "lanes")
    assert plain.summary["schedule"] == "lanes"
    assert runs["cold"]["llm_calls"] > 0 == runs["warm"]["llm_calls"]


def test_another_seed_is_another_run(simulator: EmbeddedServer, plain: Plain, tmp_path: Path) -> None:
    other = run(simulator, tmp_path / "run", "--seed", "1")
    assert other["transitions_sha256"] != plain.summary["transitions_sha256"]
    assert other["weights_sha256"] != plain.summary["weights_sha256"]


def test_a_run_learns_where_an_interrupt_left_gradients_switched_off(
    simulator: EmbeddedServer, plain: Plain, tmp_path: Path
) -> None:
    with torch.no_grad():
        summary = run(simulator, tmp_path / "run")
    assert summary["weights_sha256"] == plain.summary["weights_sha256"]


def test_a_runs_own_config_makes_it_again(simulator: EmbeddedServer, tmp_path: Path) -> None:
    first = run(simulator, tmp_path / "a", "--lr", "0.003", "--mutators", "noop,paraphrase,shorten")
    config = str(tmp_path / "a" / "config.toml")
    assert execute(("train", "--config", config, "--run-dir", str(tmp_path / "b"))) == 0
    again = read(tmp_path / "b", "summary.json")
    assert again["weights_sha256"] == first["weights_sha256"]


def test_an_llm_judge_can_be_the_reward(simulator: EmbeddedServer, tmp_path: Path) -> None:
    summary = run(simulator, tmp_path / "run", "--reward", "judge", "--judge-model", "sim-judge")
    steps = lines(tmp_path / "run")
    assert summary["unscored_rate"] == 0
    assert all("judge_score" in line["reward_parts"] for line in steps)


def test_failing_calls_are_counted_apart_and_are_never_refusals(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    simulator.set_faults([{"kind": "status", "rate": 0.3}])
    try:
        summary = run(simulator, tmp_path / "run", "--call-attempts", "1")
    finally:
        simulator.set_faults([])
    steps = lines(tmp_path / "run")
    unscored = [line for line in steps if line["unscored"]]
    assert 0 < len(unscored) == summary["unscored_steps"]
    assert all(line["outcome"] == "unscored" and "ServerFaultError" in line["error"] for line in unscored)
    assert all(not line["terminated"] and not line["truncated"] for line in unscored)


@pytest.mark.soak
def test_with_a_tenth_of_the_calls_failing_the_rates_stay_within_noise(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """One rollout of the untrained policy, 1,024 steps, with and without faults."""

    def summary(name: str) -> dict[str, Any]:
        flags = (*LANES, "--num-steps", "256", "--num-env-steps", "1024", "--ppo-epoch", "1")
        folder = tmp_path / name
        server = ("--ollama-host", simulator.host, "--call-attempts", "1")
        assert execute(("train", *server, *WORLD, *flags, "--run-dir", str(folder))) == 0
        return read(folder, "summary.json")

    without = summary("without")
    simulator.set_faults([{"kind": "status", "rate": 0.1}])
    try:
        faulty = summary("with")
    finally:
        simulator.set_faults([])
    steps, episodes = faulty["scored_steps_start"], without["episodes_start"]
    assert (without["scored_steps_start"], without["unscored_steps"]) == (1024, 0)
    assert steps + faulty["unscored_steps"] == 1024
    assert 0.7 < steps / 1024 < 0.9  # each step makes up to two calls
    refused, success = (faulty[key] - without[key] for key in ("refusal_rate_start", "success_rate_start"))
    assert abs(refused) < 3.3 * (2 * 0.25 / steps) ** 0.5
    assert abs(success) < 3.3 * (2 * 0.25 / (0.8 * episodes)) ** 0.5


@pytest.mark.soak
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_saves_and_leaves_with_the_signals_code(
    simulator: EmbeddedServer, tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    arguments = ["train", "--ollama-host", simulator.host, *WORLD, *LANES, "--num-steps", "8"]
    arguments += ["--num-env-steps", "1000000", "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "cli.launch", *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
        time.sleep(0.05)
    process.send_signal(signum)
    _, errors = process.communicate()
    assert process.returncode == code, errors
    summary = read(tmp_path / "run", "summary.json")
    assert summary["stopped"] == f"stopped by {signum.name}"
    assert load_from_zip_file(tmp_path / "run" / "policy.zip")[1]


def test_a_run_says_how_many_slots_the_server_has_and_how_it_gets_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedServer(Settings(slots=1, time_scale=0.6)) as server:
        flags = (*ONE_MODEL, *LANES, "--num-steps", "8", "--num-env-steps", "32")
        folder = ("--run-dir", str(tmp_path / "run"))
        assert execute(("train", "--ollama-host", server.host, *flags, *folder)) == 0
    summary = read(tmp_path / "run", "summary.json")
    assert summary["slots"] == {f"sim-model at {server.host}": 1}
    said = f"{server.host} runs 1 slot for 'sim-model', and 4 lanes share it: OLLAMA_NUM_PARALLEL=4 gives"
    assert said in capsys.readouterr().err
    (metrics,) = lines(tmp_path / "run", "metrics.jsonl")
    assert metrics["calls/slots_sim-model"] == 1
    assert 0 < metrics["calls/busy_slots"] <= 1.01


def test_the_weights_do_not_depend_on_the_threads_that_torch_was_given(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    given, weights = torch.get_num_threads(), []
    shape = ("--encoder", "hashing", "--num-env-steps", "512")
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert train(simulator.host, tmp_path / str(threads), *WORLD, *PASSES, *shape) == 0
            weights.append(read(tmp_path / str(threads), "summary.json")["weights_sha256"])
    finally:
        torch.set_num_threads(given)
    assert weights[0] == weights[1]
