"""Several seeds side by side: each comes out as it does alone; what ends one ends all, saved."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import ScriptedServer
from tests.runs import PASSES, WORLD, at_line, metrics, outcome, resume, send_signal, summary, train
from tests.train.conftest import BANDIT, FAILING, SEEDS, SMALL, STEPS, answers

Capture = pytest.CaptureFixture[str]
TWO = ("--seed", "5", "--seeds", "2")


def of(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


@pytest.fixture(scope="module")
def together(failing: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the seeds, side by side."""
    folder = tmp_path_factory.mktemp("together") / "run"
    assert train(failing.host, folder, *FAILING, *TWO) == 0
    return folder


def test_each_seed_side_by_side_is_the_run_that_it_is_alone(together: Path, alone: Path) -> None:
    for seed in SEEDS:
        mine, its = of(together, seed), of(alone, seed)
        names = ("env_steps", "success_rate_end", "unscored_steps", "stopped")
        assert outcome(mine, *names) == outcome(its, *names)
        assert metrics(mine) == metrics(its)
        assert (mine / "config.toml").read_text() == (its / "config.toml").read_text()
    assert len({summary(of(together, seed))["weights_sha256"] for seed in SEEDS}) == 2
    assert "seeds = 2" in (together / "config.toml").read_text()


@pytest.mark.usefixtures("fits_briefly")
def test_networks_that_are_made_in_mid_run_draw_nothing_of_other_seeds(
    failing: EmbeddedServer, auto: Path, tmp_path: Path
) -> None:
    flags = (*FAILING, *BANDIT, "--algorithm", "auto")
    assert train(failing.host, tmp_path / "run", *flags, *TWO) == 0
    assert outcome(of(tmp_path / "run", 6)) == outcome(auto)


def test_the_summary_has_each_seed_and_all(together: Path) -> None:
    found, runs = summary(together), [summary(of(together, seed)) for seed in SEEDS]
    assert (found["runs"], found["seeds"]) == (runs, list(SEEDS))
    for name in ("env_steps", "llm_calls", "completion_tokens", "unscored_steps"):
        assert found[name] == sum(run[name] for run in runs)
    rates = [run["refusal_rate_end"] for run in runs]
    assert found["refusal_rate_end"] == pytest.approx(sum(rates) / 2, abs=1e-4)
    assert found["refusal_interval_end"] is None  # two seeds say nothing of others


def test_a_reply_is_paid_for_once_and_is_in_the_log_of_each_seed_that_used_it(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """Without chance in the calls all seeds ask the same of a judge and of a target."""
    run, before = tmp_path / "run", simulator.stats()["calls"]
    judged = ("--mutators", "noop", "--reward", "judge", "--judge-model", "sim-judge")
    assert train(simulator.host, run, *SMALL, *STEPS, *judged, *TWO) == 0
    found = summary(run)
    assert found["llm_calls"] == sum(each["llm_calls"] for each in found["runs"])
    assert simulator.stats()["calls"] - before == found["llm_calls"]
    assert execute(("replay", str(run))) == 0
    assert simulator.stats()["calls"] - before == found["llm_calls"]


def test_ctrl_c_ends_all_saved_and_all_go_on(
    failing: EmbeddedServer, alone: Path, tmp_path: Path
) -> None:
    """Also where one of them went on alone before."""
    run = tmp_path / "run"
    with at_line(70, send_signal):
        assert train(failing.host, run, *FAILING, *TWO) == 130
    assert summary(run)["stopped"] == "stopped by SIGINT"
    for seed in summary(run)["seeds"]:
        found = summary(of(run, seed))
        assert found["env_steps"] == 64 or found["stopped"] == "stopped by SIGINT"
        assert (of(run, seed) / "policy.safetensors").exists()
    assert resume(of(run, 6)) == 0
    assert resume(run) == 0
    assert summary(run)["stopped"] is None
    for seed in (5, 6):
        assert outcome(of(run, seed)) == outcome(of(alone, seed))


def test_a_seed_that_cannot_go_on_ends_all_saved(tmp_path: Path, capsys: Capture) -> None:
    run, asked = tmp_path / "run", count()

    def fails(body: dict[str, Any]) -> tuple[int, object]:
        is_well = "input" in body or "model" not in body or next(asked) < 60
        return answers(body) if is_well else (500, {"error": "out of memory"})

    shape = ("--encoder", "hashing:16", "--num-processes", "4", "--num-steps", "8")
    few = ("--mutators", "noop", "--call-attempts", "1", "--always-reword", *PASSES)
    flags = ("--target-model", "m", *shape, *few)
    with ScriptedServer(fails) as server:
        assert train(server.host, run, *flags, "--seeds", "2") == 1
    found = summary(run)
    assert capsys.readouterr().err.strip().endswith(f"mutagym: {found['stopped']}")
    assert all("could not be scored" in each["stopped"] for each in (found, *found["runs"]))
    assert all((of(run, seed) / "policy.safetensors").exists() for seed in (0, 1))


def test_a_seed_whose_checkpoint_is_damaged_is_one_line_and_not_summed_up(
    together: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = Path(shutil.copytree(together, tmp_path / "run"))
    checkpoint = of(run, 5) / "checkpoints" / "last.pt"
    torch.save(torch.load(checkpoint) | {"policy": {}}, checkpoint)
    capsys.readouterr()
    assert resume(run) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "last.pt" in line]
    assert [line.startswith("mutagym: ") for line in said] == [True]
    assert summary(run)["seeds"] == [6]


def test_flags_that_do_not_go_with_several_seeds(
    simulator: EmbeddedServer, together: Path, capsys: Capture
) -> None:
    server = ("--ollama-host", simulator.host, *WORLD)
    for flags, words in (
        ((*server, "--seeds", "1"), "--seeds"),
        ((*server, "--seeds", "3", "--no-batching"), "one after another"),
        ((*server, "--seeds", "3", "--seed", str(2**32 - 2)), "lower it"),
        (
            ("--resume", str(together), "--trust-run", "--seeds", "4"),
            "--seeds is 4, but the run began with 2",
        ),
    ):
        assert execute(("train", *flags)) == 2
        assert words in capsys.readouterr().err.strip().splitlines()[-1]
