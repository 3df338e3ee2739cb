"""`mutagym optimize` on the simulator: the folder, the tables, the actors, the final comparison."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from cli.main import execute
from search.task import SEED_INSTRUCTIONS
from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches, search
from tests.runs import metrics, read


@pytest.fixture
def found(whole: WholeSearches) -> Path:
    """A small hybrid search."""
    return whole["optimize"]


def test_what_is_learned_is_in_the_folder(found: Path) -> None:
    results, lines = read(found), metrics(found)
    assert (results["simulated"], results["actor"], results["steps"]) == (True, "learning", 20)
    assert (len(results["rewards"]), results["generations"]) == (20, 4)
    assert (found / "best_prompt.txt").read_text() == results["best_prompt"] + "\n"
    assert results["population"][0]["prompt"] == results["best_prompt"]
    prompts = [member["prompt"] for member in results["population"]]
    assert len(set(prompts)) == len(prompts) <= 20
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 20]
    assert all(line["population/best_fitness"] is not None for line in lines)


def test_tables_and_progress_say_what_is_in_the_folder(
    found: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(("optimize", "--resume", str(found), "--trust-run")) == 0
    printed = capsys.readouterr()
    out = " ".join(printed.out.split())
    assert "held-out questions" in out
    assert "prompts shown" in out
    edges = [member["edge"] for member in read(found)["population"] if member["tries"]]
    assert edges == sorted(edges, reverse=True)
    places = [out.find(f"{edge:+.3f} ") for edge in edges[:3]]
    assert -1 not in places
    assert places == sorted(places)
    share = fmean(line["optimize/feedback"] for line in metrics(found))
    assert f"solved {share:.0%} of the last 20 questions," in printed.err


def test_the_actor_and_the_best_prompt_are_compared_with_the_seed_prompt_on_held_out_questions(
    found: Path,
) -> None:
    seed, best, actor = read(found)["held_out"]
    assert [arm["name"] for arm in (seed, best, actor)] == ["seed prompt", "best prompt", "actor"]
    for arm in (best, actor):
        assert arm["score"] - seed["score"] == pytest.approx(arm["difference"])
        assert arm["low"] <= arm["difference"] <= arm["high"]


@pytest.mark.parametrize(
    ("actor", "says"),
    [("fixed", "takes the first seed prompt"), ("random", "draws one of the prompts by chance")],
)
def test_the_fixed_actor_is_the_seed_prompt_and_the_random_one_is_not(
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    actor: str,
    says: str,
) -> None:
    flags = ("--actor", actor, "--critic", "ridge", "--steps", "8", "--update-interval", "100")
    results = read(search("optimize", simulator.host, tmp_path / "run", *flags))
    tries = {each["prompt"]: each["tries"] for each in results["population"] if each["tries"]}
    assert sum(tries.values()) == 16
    assert (tries.keys() == {SEED_INSTRUCTIONS}) == (actor == "fixed")
    if actor == "fixed":
        assert [arm["difference"] for arm in results["held_out"][1:]] == [0, 0]
    assert f"The actor {says}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("cap", [1, 7, 20])
def test_results_do_not_depend_on_the_cap_which_holds(
    simulator: EmbeddedServer, found: Path, tmp_path: Path, cap: int
) -> None:
    simulator.reset_stats()
    run = search("optimize", simulator.host, tmp_path / "run", "--max-workers", str(cap))
    assert (run / "results.json").read_bytes() == (found / "results.json").read_bytes()
    assert simulator.stats()["max_in_flight"] <= cap


def test_without_a_judge_the_critic_is_the_regression(simulator: EmbeddedServer, tmp_path: Path) -> None:
    roles = ("--target-model", "sim-solver", "--mutator-model", "sim-mutator", "--steps", "4")
    flags = ("--ollama-host", simulator.host, *roles, "--run-dir", str(tmp_path / "run"))
    assert execute(("optimize", *flags)) == 0
    assert 'critic = "ridge"' in (tmp_path / "run" / "config.toml").read_text()


def test_nothing_is_held_out_where_that_is_asked_for(simulator: EmbeddedServer, tmp_path: Path) -> None:
    run = search("optimize", simulator.host, tmp_path / "run", "--held-out", "0", "--steps", "4")
    assert read(run)["held_out"] is None


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--weight-feedback=nan", "--weight-feedback"),
        ("--weight-tokens=-inf", "--weight-tokens"),
        ("--elite-size=20", "--elite-size"),
    ],
)
def test_a_number_that_does_not_fit_is_refused_before_anything_is_asked(
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    says: str,
) -> None:
    before = simulator.stats()["calls"]
    search("optimize", simulator.host, tmp_path / "run", flag, code=2)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert simulator.stats()["calls"] == before
    assert not (tmp_path / "run" / "config.toml").exists()
