"""A genome on the panel: paired with its rival, stopped when worse, never scored 0 for a broken call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mutators.system_prompts import WrongAnswer
from ollama_utils.errors import ServerFaultError
from ollama_utils.types import Call, Completion
from search.genetics.fitness import KEPT_CHARS, Answer, Evaluated, Panel, Trial
from search.genetics.genome import Genome
from search.task import Problem, ask_problem, exact_answer

COUNT = 40
PROBLEMS = tuple(Problem(id=str(i), question=f"What is {i}?", answer=str(i)) for i in range(COUNT))
BROKEN = Completion(text="", error=ServerFaultError("503"))
Reply = Callable[[int], Completion]


def panel(**changes: Any) -> Panel:  # noqa: ANN401 - any of its fields
    return Panel(
        **{
            "problems": PROBLEMS,
            "scorer": exact_answer,
            "ask": lambda problem, prompt: ask_problem(problem, prompt, model="m"),
            "batch_size": 10,
            **changes,
        }
    )


def number(call: Call) -> int:
    return int(call.prompt.removeprefix("What is ").removesuffix("?"))


def right_below(most: int) -> Reply:
    return lambda i: Completion(text=f"Answer: {i if i < most else 'unknown'}")


def tried(
    reply: Reply,
    rival: Evaluated | None = None,
    **changes: Any,  # noqa: ANN401 - any of them
) -> tuple[Evaluated, list[list[int]]]:
    """The result of a trial, and the problems of each batch that it asked."""
    trial, asked = Trial(Genome("Solve it."), panel(**changes), rival), []
    while not trial.is_over:
        plan = trial.go_on()
        values: Sequence[Answer] | None = None
        try:
            while True:
                askings = next(plan) if values is None else plan.send(values)
                asked.append([number(asking.call) for asking in askings])
                values = [asking.answer(lambda call: reply(number(call))) for asking in askings]
        except StopIteration:
            continue
    return trial.result(), asked


def test_a_genome_that_nothing_stops_is_put_the_whole_panel_at_once() -> None:
    evaluated, asked = tried(right_below(30))
    assert asked == [list(range(COUNT))]
    assert (evaluated.fitness, evaluated.asked, evaluated.is_complete) == (0.75, COUNT, True)
    assert tried(right_below(0), evaluated, early_stop_level=None)[1] == asked


def test_a_genome_with_a_rival_is_put_the_panel_batch_by_batch() -> None:
    rival, _ = tried(right_below(36))
    evaluated, asked = tried(right_below(36), rival)
    assert asked == [list(range(begun, begun + 10)) for begun in range(0, COUNT, 10)]
    assert evaluated == rival


def test_a_surely_worse_genome_is_stopped_and_estimated_by_its_rival() -> None:
    rival, _ = tried(right_below(36))
    evaluated, asked = tried(right_below(0), rival)
    assert evaluated.stopped
    assert not evaluated.is_complete
    assert evaluated.fitness == 0.0
    assert evaluated.asked == len(asked) * 10 < COUNT
    assert evaluated.scores[evaluated.asked :] == (None,) * (COUNT - evaluated.asked)


def test_a_genome_that_is_as_good_is_not_stopped_and_none_is_where_that_is_off() -> None:
    rival, _ = tried(right_below(36))
    assert tried(right_below(36), rival)[0].is_complete
    assert tried(right_below(0), rival, early_stop_level=None)[0].is_complete


@pytest.mark.parametrize("at_once", [2, 3, 9])
def test_batches_that_are_asked_together_change_no_result(at_once: int) -> None:
    rival, _ = tried(right_below(36))
    for most in (0, 20, 40):
        alone, _ = tried(right_below(most), rival)
        together, asked = tried(right_below(most), rival, batches_at_once=at_once)
        assert together == alone
        assert len(asked[0]) == min(COUNT, 10 * at_once)


def test_what_fails_once_is_asked_again_and_scored() -> None:
    failed: set[int] = set()

    def reply(i: int) -> Completion:
        if i % 7 == 0 and i not in failed:
            failed.add(i)
            return BROKEN
        return right_below(COUNT)(i)

    evaluated, asked = tried(reply)
    assert (evaluated.fitness, evaluated.unscored) == (1.0, 0)
    assert asked[1] == list(range(0, COUNT, 7))


def test_what_keeps_failing_is_unscored_and_no_0() -> None:
    evaluated, _ = tried(lambda i: BROKEN if i in (3, 4, 5) else right_below(COUNT)(i))
    assert (evaluated.fitness, evaluated.unscored, evaluated.asked) == (1.0, 3, COUNT)
    assert evaluated.scores[3:6] == (None, None, None)


def test_a_genome_with_too_many_failures_has_no_fitness_and_is_given_up() -> None:
    evaluated, asked = tried(lambda _: BROKEN)
    assert evaluated.fitness is None
    assert not evaluated.is_complete
    assert len(asked) == 2  # one batch, asked twice


@pytest.mark.parametrize("batches_at_once", [1, 3])
def test_failures_are_the_problems_that_were_answered_and_got_no_full_score(batches_at_once: int) -> None:
    def reply(i: int) -> Completion:
        return BROKEN if i == 7 else right_below(36)(i)

    result, _ = tried(reply, batches_at_once=batches_at_once)
    assert result.failures == tuple(
        WrongAnswer(f"What is {i}?", str(i), "Answer: unknown") for i in range(36, COUNT)
    )
    ended, _ = tried(right_below(0), result, batches_at_once=batches_at_once)
    assert ended.stopped
    assert [failure.answer for failure in ended.failures] == [str(i) for i in range(ended.asked)]


def test_of_graded_scores_the_lower_ones_are_failures_and_of_equal_ones_all() -> None:
    def graded(problem: Problem, reply: str) -> float:
        return int(problem.answer or 0) / COUNT if reply else 0.0

    result, _ = tried(right_below(0), scorer=graded)
    assert [failure.answer for failure in result.failures] == [str(i) for i in range(COUNT // 2)]
    worst, _ = tried(right_below(0))
    assert len(worst.failures) == COUNT
    best, _ = tried(right_below(COUNT))
    assert best.failures == ()


def test_of_a_long_reply_the_end_is_kept() -> None:
    result, _ = tried(lambda _: Completion(text="word " * 9_999 + "Answer: unknown"))
    assert {len(failure.reply) for failure in result.failures} == {KEPT_CHARS}
    assert result.failures[0].reply.endswith("Answer: unknown")
