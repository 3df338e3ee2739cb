"""`--until-sure` and `--kept`: what is kept is not learned from, and a run that was broken off ends alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import ScriptedServer
from tests.runs import PASSES, WORLD, interrupted_at, lines, metrics, read, resume, summary, train
from tests.train.test_stops import answers

STEPS = 160
"""Five rollouts of 32: looks after 1, 2 and 4 of them, and at the end."""
SMALL = (
    *WORLD,
    *("--num-processes", "4", "--num-steps", "8", "--encoder", "hashing:16", *PASSES),
    *("--num-env-steps", str(STEPS), "--max-steps", "2"),
)
THREE = ("--mutators", "noop,shorten,add_context")
KEPT = ("--kept", "0.1")
EQUAL = (
    *("transitions_sha256", "weights_sha256"),
    *("gain", "gain_interval", "gain_looks", "kept_steps", "until_sure"),
)


@pytest.fixture(scope="module")
def whole(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that looks, and goes on to its end."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    assert train(simulator.host, folder, *SMALL, *THREE, *KEPT) == 0
    return folder


def test_kept_queries_are_of_the_training_side_and_are_not_learned_from(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path
) -> None:
    assert train(simulator.host, tmp_path / "run", *SMALL, *THREE) == 0
    split, before = read(whole, "queries.json"), read(tmp_path / "run", "queries.json")
    assert set(split["kept"]) | set(split["train"]) == set(before["train"])
    assert not set(split["kept"]) & set(split["train"])
    assert split["held_out"] == before["held_out"]
    assert 20 < len(split["kept"]) < 70
    assert {line["original_query"] for line in lines(whole)} <= set(split["train"])
    assert "kept" not in before
    assert "gain" not in summary(tmp_path / "run")


def test_a_run_says_what_it_gained_at_each_look(whole: Path) -> None:
    said = summary(whole)
    assert [look["env_steps"] for look in said["gain_looks"]] == [32, 64, 128, 160]
    assert said["gain_interval"][0] <= said["gain"] <= said["gain_interval"][1]
    assert said["gain_slope_interval"][0] <= said["gain_slope"] <= said["gain_slope_interval"][1]
    assert said["gain_over"] in {"noop", "shorten", "add_context"}
    assert said["kept_queries"] == len(read(whole, "queries.json")["kept"])
    assert said["kept_steps"] >= 7 * said["kept_queries"]
    assert said["until_sure"] is None
    looks = [line for line in metrics(whole) if "gain/gain" in line]
    assert [line["step"] for line in looks] == [32, 64, 128, 160]
    assert {"gain/gain_low", "gain/slope", "gain/slope_high", "gain/success"} <= set(looks[-1])


def test_looks_change_nothing_of_what_is_learned(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path
) -> None:
    """A run on the same queries that never looks has the same steps and weights."""
    texts = tmp_path / "train.txt"
    texts.write_text("\n".join(read(whole, "queries.json")["train"]))
    flags = (*SMALL, *THREE, "--queries", str(texts), "--held-out", "0")
    assert train(simulator.host, tmp_path / "run", *flags) == 0
    names = ("transitions_sha256", "weights_sha256")
    assert [summary(tmp_path / "run")[name] for name in names] == [summary(whole)[name] for name in names]


@pytest.mark.parametrize("schedule", ["sequential", "phased"])
def test_looks_do_not_depend_on_the_schedule(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path, schedule: str
) -> None:
    assert train(simulator.host, tmp_path / "run", *SMALL, *THREE, *KEPT, "--schedule", schedule) == 0
    assert [summary(tmp_path / "run")[name] for name in EQUAL] == [summary(whole)[name] for name in EQUAL]


@pytest.mark.parametrize("written", [40, 96])
def test_a_run_that_was_broken_off_has_the_same_looks(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path, written: int
) -> None:
    interrupted_at(simulator.host, tmp_path / "run", written, *SMALL, *THREE, *KEPT)
    assert resume(tmp_path / "run") == 0
    assert [summary(tmp_path / "run")[name] for name in EQUAL] == [summary(whole)[name] for name in EQUAL]
    assert summary(tmp_path / "run")["llm_calls"] == summary(whole)["llm_calls"]
    assert metrics(tmp_path / "run") == metrics(whole)


def test_a_run_that_is_settled_ends_early_and_stays_ended(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one mutator no policy gains anything, and that is plain once there is a slope."""
    alone = (*SMALL, "--mutators", "noop", "--until-sure", "--kept", "0.5", "--least-gain", "0.5")
    assert train(simulator.host, tmp_path / "run", *alone) == 0
    said = summary(tmp_path / "run")
    assert said["until_sure"].startswith("forecast")
    assert said["env_steps"] == 64
    assert said["stopped"] is None
    assert "ended by --until-sure: forecast" in capsys.readouterr().out
    assert resume(tmp_path / "run") == 0
    assert [summary(tmp_path / "run")[name] for name in EQUAL] == [said[name] for name in EQUAL]
    assert summary(tmp_path / "run")["env_steps"] == 64


@pytest.mark.parametrize("failing", [10, None])
def test_calls_that_fail_at_a_look_are_told_and_too_many_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failing: int | None
) -> None:
    """The look is not recorded then, and made when the run is gone on with."""
    run = tmp_path / "run"
    broken = [True]

    def fails(body: dict[str, Any]) -> tuple[int, object]:
        kept = read(run, "queries.json")["kept"] if (run / "queries.json").exists() else []  # as yet
        if broken[0] and "prompt" in body and body["prompt"] in kept[:failing]:
            return 500, {"error": "out of memory"}
        return answers(body)

    flags = ("--encoder", "hashing:16", "--mutators", "noop", "--num-processes", "4", "--num-steps", "8")
    with ScriptedServer(fails) as server:
        told = ("--ollama-host", server.host, "--target-model", "m", "--call-attempts", "1")
        begin = ("train", *told, *flags, *PASSES, "--max-steps", "1", "--num-env-steps", "32", *KEPT)
        code = execute((*begin, "--run-dir", str(run)))
        said = capsys.readouterr().err
        if failing:
            assert code == 0
            assert f"{failing} kept queries could not be scored" in said
            return
        assert code == 1
        assert "kept queries could not be scored" in said.splitlines()[-1]
        assert summary(run)["gain_looks"] == []
        broken[0] = False
        assert resume(run) == 0
    assert [look["env_steps"] for look in summary(run)["gain_looks"]] == [32]


def test_least_gain_alone_is_a_clear_error(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(simulator.host, tmp_path / "run", *SMALL, *THREE, *KEPT, "--least-gain", "0.1") == 2
    assert "add --until-sure" in capsys.readouterr().err


def test_kept_queries_are_none_to_evaluate_on(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "kept.txt"
    texts.write_text("\n".join(read(whole, "queries.json")["kept"]))
    mission = ("--queries", str(texts), "--held-out", "0.5", "--split-seed", "1")
    flags = ("--policy", str(whole), "--ollama-host", simulator.host, "--run-dir", str(tmp_path / "eval"))
    assert execute(["eval", *WORLD, *THREE, "--encoder", "hashing:16", *mission, *flags]) == 2
    assert "were trained on" in capsys.readouterr().err


def test_until_sure_without_kept_queries_is_a_clear_error(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(simulator.host, tmp_path / "run", *SMALL, *THREE, "--until-sure", "--kept", "0") == 2
    assert "--until-sure needs kept queries" in capsys.readouterr().err


def test_a_share_that_keeps_nothing_is_a_clear_error(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "two.txt"
    texts.write_text("How do I boil an egg?\nHow do I fry an egg?\n")
    few = ("--queries", str(texts), "--held-out", "0", "--kept", "0.0001")
    assert train(simulator.host, tmp_path / "run", *SMALL, *THREE, *few) == 2
    assert "--kept" in capsys.readouterr().err
