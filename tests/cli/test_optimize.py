"""`mutagym optimize` on the simulator: the population, the actors, the critics, the final comparison."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import pytest

from cli.main import execute
from cli.optimize import OptimizeConfig
from search.hybrid import ActorCriticParams, HybridSettings
from search.task import SEED_INSTRUCTIONS
from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches, search
from tests.runs import metrics, read


@pytest.fixture
def found(whole: WholeSearches) -> Path:
    """A small hybrid search."""
    return whole["optimize"]


def test_what_is_learned_is_in_the_folder(found: Path) -> None:
    results = read(found)
    assert (results["simulated"], results["actor"], results["steps"]) == (True, "learning", 20)
    assert len(results["rewards"]) == 20
    assert results["generations"] == 4
    assert set(results["calibration"]) == {"llm", "ridge"}
    assert (found / "best_prompt.txt").read_text() == results["best_prompt"] + "\n"


def test_the_population_stays_the_size_it_was_told(found: Path) -> None:
    assert {line["population/size"] for line in metrics(found)} == {10}
    assert len({member["prompt"] for member in read(found)["population"]}) == 10


def test_tables_and_progress_tell_what_is_in_the_folder(
    found: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(("optimize", "--resume", str(found), "--trust-run")) == 0
    told = capsys.readouterr()
    out = " ".join(told.out.split())
    assert "held-out questions" in out
    assert "5 of 10 prompts shown" in out
    assert "may exceed 1" in out
    edges = [member["edge"] for member in read(found)["population"] if member["tries"]]
    assert edges == sorted(edges, reverse=True)
    places = [out.find(f"{edge:+.3f} ") for edge in edges[:3]]
    assert -1 not in places
    assert places == sorted(places)
    share = fmean(line["optimize/feedback"] for line in metrics(found))
    assert f"solved {share:.0%} of the last 20 questions," in told.err


def test_the_defaults_are_those_of_python_but_for_what_is_free_here() -> None:
    ours = replace(ActorCriticParams(), feedback_for_all=True, parallel_eval=True)
    assert asdict(HybridSettings()) == asdict(ours)
    assert OptimizeConfig().encoder == "hashing"


def test_the_actor_and_the_best_prompt_are_compared_with_the_seed_prompt_on_held_out_questions(
    found: Path,
) -> None:
    results = read(found)
    assert results["population"][0]["prompt"] == results["best_prompt"]
    seed, best, actor = results["held_out"]
    assert [arm["name"] for arm in (seed, best, actor)] == ["seed prompt", "best prompt", "actor"]
    for arm in (best, actor):
        assert arm["score"] - seed["score"] == pytest.approx(arm["difference"])
        assert arm["low"] <= arm["difference"] <= arm["high"]


def test_metrics_are_written_batch_by_batch(found: Path) -> None:
    lines = metrics(found)
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 20]
    assert all(line["population/best_fitness"] is not None for line in lines)


def test_the_fixed_actor_is_the_seed_prompt_and_the_random_one_is_not(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--critic", "ridge", "--steps", "8")
    runs, says = {}, {}
    for actor in ("fixed", "random"):
        runs[actor] = read(search("optimize", simulator.host, tmp_path / actor, "--actor", actor, *flags))
        says[actor] = " ".join(capsys.readouterr().out.split())
    tries = {each["prompt"]: each["tries"] for each in runs["fixed"]["population"]}
    assert tries.get(SEED_INSTRUCTIONS) == sum(tries.values()) == 16
    assert runs["fixed"]["held_out"][2]["difference"] == 0
    assert sum(each["tries"] > 0 for each in runs["random"]["population"]) > 1
    assert "The actor takes the first seed prompt" in says["fixed"]
    assert "no other prompt was tried" in says["fixed"]
    assert "The actor draws one of the prompts by chance" in says["random"]
    assert not any("likes best" in said for said in says.values())


def test_a_fixed_prompt_is_a_member_however_its_sections_are_written(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    prompt = tmp_path / "seed.txt"
    prompt.write_text("Format: Be brief.\n\nRole: You are a patient teacher.\nTask: Answer the question.\n")
    flags = ("--actor", "fixed", "--critic", "ridge", "--steps", "4", "--update-interval", "100")
    run = read(search("optimize", simulator.host, tmp_path / "run", *flags, "--seed-prompt", str(prompt)))
    tries = {each["prompt"]: each["tries"] for each in run["population"]}
    assert tries.get(run["seed_prompt"]) == sum(tries.values()) == 8
    assert run["best_prompt"] == run["seed_prompt"]
    assert [arm["difference"] for arm in run["held_out"][1:]] == [0, 0]


@pytest.mark.parametrize("flag", ["--weight-feedback=nan", "--weight-critic=inf", "--weight-tokens=-inf"])
def test_a_weight_that_is_not_finite_is_refused_before_anything_is_asked(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    before = simulator.stats()["calls"]
    search("optimize", simulator.host, tmp_path / "run", flag, code=2)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert flag.partition("=")[0] in line
    assert "inf" in line
    assert simulator.stats()["calls"] == before
    assert not (tmp_path / "run").exists()


def test_results_do_not_depend_on_how_many_calls_are_under_way(
    simulator: EmbeddedServer, found: Path, tmp_path: Path
) -> None:
    alone = search("optimize", simulator.host, tmp_path / "run", "--no-parallel-eval", "--max-workers", "1")
    assert (alone / "results.json").read_bytes() == (found / "results.json").read_bytes()


def test_without_a_judge_the_critic_is_the_regression(simulator: EmbeddedServer, tmp_path: Path) -> None:
    roles = ("--target-model", "sim-solver", "--mutator-model", "sim-mutator", "--encoder", "hashing:32")
    told = ("--ollama-host", simulator.host, *roles, "--steps", "4", "--run-dir", str(tmp_path / "run"))
    assert execute(("optimize", *told)) == 0
    assert set(read(tmp_path / "run")["calibration"]) == {"ridge"}


def test_nothing_is_held_out_where_that_is_asked_for(simulator: EmbeddedServer, tmp_path: Path) -> None:
    run = search("optimize", simulator.host, tmp_path / "run", "--held-out", "0", "--steps", "4")
    assert read(run)["held_out"] is None
