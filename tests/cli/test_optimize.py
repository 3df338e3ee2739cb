"""`mutagym optimize` on the simulator: folder, actors, critics, the final comparison."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from cli.main import execute
from search.task import SEED_INSTRUCTIONS
from simulator.process import EmbeddedServer
from tests.cli.searches import WholeSearches, resume, search
from tests.runs import metrics, read

Capture = pytest.CaptureFixture[str]


def test_what_is_learned_is_in_the_folder_and_compared_with_the_seed_prompt(
    whole: WholeSearches, tmp_path: Path, capsys: Capture
) -> None:
    folder = resume("optimize", whole.copy_of("optimize", tmp_path / "run"))
    results, lines, population = read(folder), metrics(folder), read(folder)["population"]
    assert (results["actor"], results["steps"], results["generations"]) == ("learning", 20, 4)
    assert population[0]["prompt"] == results["best_prompt"]
    assert (folder / "best_prompt.txt").read_text() == results["best_prompt"] + "\n"
    assert len({member["prompt"] for member in population}) == len(population) <= 20
    edges = [member["edge"] for member in population if member["tries"]]
    assert edges == sorted(edges, reverse=True)
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 20]
    share = fmean(line["optimize/feedback"] for line in lines)
    assert f"solved {share:.0%} of the last 20 questions," in capsys.readouterr().err
    seed, *others = results["held_out"]
    assert [arm["name"] for arm in (seed, *others)] == ["seed prompt", "best prompt", "actor"]
    for arm in others:
        assert arm["score"] - seed["score"] == pytest.approx(arm["difference"])
        assert arm["low"] <= arm["difference"] <= arm["high"]


@pytest.mark.parametrize(
    ("actor", "says"),
    [("fixed", "takes the first seed prompt"), ("random", "draws one of the prompts by chance")],
)
def test_the_fixed_actor_is_the_seed_prompt_and_the_random_one_is_not(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture, actor: str, says: str
) -> None:
    flags = ("--actor", actor, "--critic", "ridge", "--steps", "8", "--update-interval", "100")
    results = read(search("optimize", simulator.host, tmp_path / "run", *flags))
    tries = {each["prompt"]: each["tries"] for each in results["population"] if each["tries"]}
    assert sum(tries.values()) == 16
    assert (tries.keys() == {SEED_INSTRUCTIONS}) == (actor == "fixed")
    if actor == "fixed":
        assert [arm["difference"] for arm in results["held_out"][1:]] == [0, 0]
    assert f"The actor {says}" in " ".join(capsys.readouterr().out.split())


def test_without_a_judge_the_critic_is_the_regression_and_nothing_need_be_held_out(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    flags = f"--target-model sim-solver --steps 4 --held-out 0 --run-dir {run}".split()
    assert execute(["optimize", "--ollama-host", simulator.host, *flags]) == 0
    assert 'critic = "ridge"' in (run / "config.toml").read_text()
    assert read(run)["held_out"] is None
