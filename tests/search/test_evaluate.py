"""What a combination makes of a problem, on the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import ModelMissingError
from ollama_utils.types import Call, Completion
from search import make_selector
from search.evaluate import TaskEvaluation
from search.task import Problem, Task, ask_problem, bundled_task

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


def test_the_score_is_the_scorers_and_seconds_and_tokens_are_the_servers(llm: Recorder) -> None:
    evaluate = llm.on_task(prompts={"brief": "Answer in one sentence."})
    found = evaluate({"model": "sim-target", "prompt": "brief"}, PROBLEM)
    call = ask_problem(PROBLEM, "Answer in one sentence.", model="sim-target")
    reply = llm.generate(call)
    assert llm.calls[0] == call
    assert reply.usage is not None
    assert found.score == length(PROBLEM, reply.text)
    assert found.latency_s == reply.usage.total_s > 0
    assert found.prompt_tokens == reply.usage.prompt_tokens > 0
    assert found.completion_tokens == reply.usage.completion_tokens > 0
    assert found.price == 0


def test_a_mutator_by_model_is_asked_first_and_each_model_has_its_price(llm: Recorder) -> None:
    prices = {"sim-target:latest": (2.0, 10.0), "sim-mutator": (1.0, 3.0)}
    found = llm.on_task(prices=prices, model="sim-target")({"mutator": "paraphrase"}, PROBLEM)
    calls, expected = llm.calls[:], 0.0
    assert [call.model for call in calls] == ["sim-mutator", "sim-target"]
    assert calls[1].prompt != PROBLEM.question
    for call, (read, written) in zip(calls, ((1.0, 3.0), (2.0, 10.0)), strict=True):
        usage = llm.generate(call).usage
        assert usage is not None
        expected += (usage.prompt_tokens * read + usage.completion_tokens * written) / 1e6
    assert found.price == pytest.approx(expected)


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


def test_the_file_of_a_users_mutator_is_loaded_once(llm: Recorder, tmp_path: Path) -> None:
    file, loads = tmp_path / "own.py", tmp_path / "loads"
    file.write_text(
        "from mutators.registry import by_rule\n"
        f"with open({str(loads)!r}, 'a') as file:\n    file.write('.')\n"
        "@by_rule\ndef own(query, earlier, seed):\n    return query + '?'\n"
    )
    evaluate, choice = llm.on_task(), {"model": "sim-target", "mutator": f"{file}:own"}
    evaluate.check({"mutator": [choice["mutator"]]})
    before = loads.read_text()
    for _ in range(3):
        evaluate(choice, PROBLEM)
    assert loads.read_text() == before


def test_the_model_that_solves_most_is_selected_and_one_that_is_not_there_never(
    dispatcher: Dispatcher,
) -> None:
    task = bundled_task()
    evaluate = TaskEvaluation(generate=dispatcher.generate, task=task)
    models = ["no-such-model", "sim-solver-small", "sim-solver-large"]
    selector = make_selector("arm_elimination", {"model": models}, task.problems, evaluate)
    results = selector.select_best(parallel=True)
    assert results.best.combination["model"] == "sim-solver-large"
    (missing,) = (row for row in results.rows if row.combination["model"] == "no-such-model")
    assert missing.errors == missing.datapoints > 0
    assert ModelMissingError.__name__ in str(missing.first_error)
