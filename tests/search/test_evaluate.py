"""What a combination makes of a problem, on the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call, Completion
from search.evaluate import TaskEvaluation
from search.task import Problem, Task, bundled_task

PROBLEM = Problem(id="1", question="How do I bake a plain loaf of bread", answer=None)


def length(problem: Problem, reply: str) -> float:
    """Any score that distinguishes replies."""
    return len(problem.question + reply) % 97 / 97


class Recorder:
    """The dispatcher, and what went through it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.calls: list[Call] = []

    def generate(self, call: Call) -> Completion:
        self.calls.append(call)
        return self._dispatcher.generate(call)

    def on_task(self, **more: Any) -> TaskEvaluation:
        task = Task(name="any", problems=(PROBLEM,), scorer=length)
        return TaskEvaluation(
            generate=self.generate, task=task, mutator_model="sim-mutator", **more
        )


@pytest.fixture
def llm(dispatcher: Dispatcher) -> Recorder:
    return Recorder(dispatcher)


def test_the_score_is_the_scorers_and_costs_are_of_all_calls_at_the_prices_of_their_models(
    llm: Recorder,
) -> None:
    prices = {"sim-target:latest": (2.0, 10.0), "sim-mutator": (1.0, 3.0)}
    evaluate = llm.on_task(prices=prices, prompts={"brief": "Answer in one sentence."})
    chosen = {"model": "sim-target", "prompt": "brief", "mutator": "paraphrase"}
    found = evaluate(chosen, PROBLEM)
    calls, usages = llm.calls[:], []
    assert [call.model for call in calls] == ["sim-mutator", "sim-target"]
    assert calls[1].system == "Answer in one sentence."
    assert calls[1].prompt != PROBLEM.question
    for call in calls:
        reply = llm.generate(call)
        assert reply.usage is not None
        usages.append(reply.usage)
    assert found.score == length(PROBLEM, reply.text)
    assert found.latency_s == sum(usage.total_s for usage in usages)
    tokens = [(usage.prompt_tokens, usage.completion_tokens) for usage in usages]
    assert [found.prompt_tokens, found.completion_tokens] == np.sum(tokens, axis=0).tolist()
    price = sum(
        read * a + written * b
        for (read, written), (a, b) in zip([(1.0, 3.0), (2.0, 10.0)], tokens, strict=True)
    )
    assert found.price == pytest.approx(price / 1e6)


def test_choices_that_cannot_be_evaluated_are_one_line_before_any_call(llm: Recorder) -> None:
    with pytest.raises(ValueError, match="did you mean paraphrase"):
        llm.on_task().check({"mutator": [None, "paraphrse"]})
    without = TaskEvaluation(generate=llm.generate, task=bundled_task())
    with pytest.raises(ValueError, match="'paraphrase' rewords by a model"):
        without.check({"mutator": ["paraphrase"]})
    without.check({"mutator": [None, "add_politeness"]})
    with pytest.raises(ValueError, match="no model is named"):
        without({}, PROBLEM)
    with pytest.raises(ValueError, match="'paraphrase' rewords by a model"):
        without({"model": "sim-target", "mutator": "paraphrase"}, PROBLEM)
    assert not llm.calls
