"""How the hybrid flow's learning is measured: nothing held out is trained on, and all have as many calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.hybrid_learning import ARMS, FIXED, LEARNING, Plan, Run, favourite, leads, play, report
from search.optimizing.actors import PromptChoice
from search.task import bundled_task

PLAN = Plan(seeds=2, steps=3, looks=1, held_out=0.1, encoder="hashing")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return play(PLAN)


def test_every_arm_has_as_many_calls_and_a_population_of_its_size(runs: list[Run]) -> None:
    assert {(run.arm, run.seed) for run in runs} == {(arm, seed) for arm in ARMS for seed in range(2)}
    assert len({run.calls for run in runs}) == 1
    assert all(run.sizes == {ARMS[run.arm].population_size} for run in runs)


def test_each_look_is_at_the_questions_that_the_runs_own_split_holds_out(runs: list[Run]) -> None:
    for run in runs:
        train, held = bundled_task().split(PLAN.held_out, PLAN.first_split + run.seed)
        questions = {problem.question for problem in held.problems}
        assert all(look.keys() == questions for look in (*run.held, run.best))
        assert not questions & {problem.question for problem in train.problems}
    assert runs[0].held[0].keys() != runs[-1].held[0].keys()


def test_the_fixed_prompt_never_changes(runs: list[Run]) -> None:
    for run in runs:
        if run.arm == FIXED:
            assert run.held[0] == run.held[-1]


def test_equal_plans_have_equal_runs(runs: list[Run]) -> None:
    again = play(replace(PLAN, seeds=1))
    assert again == runs[: len(ARMS)]


def test_the_report_shows_every_arm_and_checks_both_claims(runs: list[Run]) -> None:
    section = report(PLAN, runs)
    assert len(section.rows) == len(ARMS) + 1
    assert len(section.checks) == 6
    assert all(check.met for check in section.checks[-2:])
    assert LEARNING in section.markdown()


def test_a_lead_is_paired_by_question_and_by_seed() -> None:
    a = [{"p": 1.0, "q": 1.0}, {"q": 0.0, "r": 1.0}]
    b = [{"p": 0.0, "q": 1.0}, {"q": 0.0, "r": 0.0}]
    by_question, by_seed = leads(a, b)
    assert (by_question.queries, by_question.wins, by_question.losses) == (3, 2, 0)
    assert by_question.difference == pytest.approx(2 / 3)
    assert (by_seed.queries, by_seed.difference) == (2, 0.5)


@pytest.mark.parametrize(
    ("probabilities", "drawn", "expected"),
    [((0.2, 0.5, 0.3), 0, "b"), ((0.25, 0.25, 0.25, 0.25), 2, "c"), ((0.4, 0.2, 0.4), 2, "c")],
)
def test_the_favourite_is_the_likeliest_prompt_and_of_equal_ones_that_drawn(
    probabilities: tuple[float, ...], drawn: int, expected: str
) -> None:
    prompts = tuple("abcd"[: len(probabilities)])
    choice = PromptChoice(
        query="?", prompts=prompts, places=(drawn,), probabilities=probabilities, inclusion=(1.0,)
    )
    assert favourite(choice) == expected
