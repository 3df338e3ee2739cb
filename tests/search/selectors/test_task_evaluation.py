"""What a combination makes of a problem, on the simulator."""

from __future__ import annotations

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import ModelMissingError
from ollama_utils.types import Call, Completion
from search.selectors.arm_elimination import ArmEliminationSelector
from search.selectors.combination import Combination
from search.selectors.task_evaluation import TaskEvaluation
from search.task import Problem, Task, ask_problem, bundled_task

PROBLEM = Problem(id="1", question="How do I bake a plain loaf of bread", answer=None)


def length(problem: Problem, reply: str) -> float:
    """Any score that tells replies apart."""
    return len(problem.question + reply) % 97 / 97


TASK = Task(name="any", problems=(PROBLEM,), scorer=length)


class Recorder:
    """The dispatcher, and what went through it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.calls: list[Call] = []

    def generate(self, call: Call) -> Completion:
        self.calls.append(call)
        return self._dispatcher.generate(call)


@pytest.fixture
def llm(dispatcher: Dispatcher) -> Recorder:
    return Recorder(dispatcher)


def test_the_score_is_the_scorers_and_seconds_and_tokens_are_the_servers(llm: Recorder) -> None:
    found = TaskEvaluation(llm, TASK, prompt="Answer in one sentence.")(
        Combination({"model": "sim-target"}), PROBLEM
    )
    call = ask_problem(PROBLEM, "Answer in one sentence.", model="sim-target")
    reply = llm.generate(call)
    assert llm.calls[0] == call
    assert reply.usage is not None
    assert found.score == length(PROBLEM, reply.text)
    assert found.latency_s == reply.usage.total_s > 0
    assert found.prompt_tokens == reply.usage.prompt_tokens > 0
    assert found.completion_tokens == reply.usage.completion_tokens > 0


def test_the_price_is_that_of_the_tokens_of_each_model(llm: Recorder) -> None:
    prices = {"sim-target:latest": (2.0, 10.0), "sim-mutator": (1.0, 3.0)}
    evaluate = TaskEvaluation(llm, TASK, prices, model="sim-target", mutator_model="sim-mutator")
    found = evaluate(Combination({"mutator": "paraphrase"}), PROBLEM)
    expected = 0.0
    for call, (prompt, completion) in zip(llm.calls[:], ((1.0, 3.0), (2.0, 10.0)), strict=True):
        usage = llm.generate(call).usage
        assert usage is not None
        expected += (usage.prompt_tokens * prompt + usage.completion_tokens * completion) / 1e6
    assert found.price == pytest.approx(expected)
    assert found.price > 0


def test_a_model_without_a_price_costs_nothing(llm: Recorder) -> None:
    evaluate = TaskEvaluation(llm, TASK, {"another": (2.0, 10.0)}, model="sim-target")
    assert evaluate(Combination({}), PROBLEM).price == 0


def test_a_mutator_by_rule_rewords_the_question_and_the_original_is_scored(llm: Recorder) -> None:
    evaluate = TaskEvaluation(llm, TASK, model="sim-target")
    found = evaluate(Combination({"mutator": "add_politeness"}), PROBLEM)
    (call,) = llm.calls
    assert call.prompt != PROBLEM.question
    assert PROBLEM.question.lower() in call.prompt.lower()
    assert found.score == length(PROBLEM, llm.generate(call).text)


def test_a_mutator_by_model_is_asked_first_and_its_tokens_are_counted(llm: Recorder) -> None:
    evaluate = TaskEvaluation(llm, TASK, model="sim-target", mutator_model="sim-mutator")
    found = evaluate(Combination({"mutator": "paraphrase"}), PROBLEM)
    rewrite, ask = llm.calls
    assert (rewrite.model, ask.model) == ("sim-mutator", "sim-target")
    assert ask.prompt != PROBLEM.question
    usages = [llm.generate(call).usage for call in (rewrite, ask)]
    assert found.prompt_tokens == sum(usage.prompt_tokens for usage in usages if usage is not None)


def test_a_prompt_may_be_chosen_by_its_name(llm: Recorder) -> None:
    evaluate = TaskEvaluation(llm, TASK, model="sim-target", prompts={"brief": "Answer in one sentence."})
    evaluate(Combination({"prompt": "brief"}), PROBLEM)
    evaluate(Combination({"prompt": "Answer at length."}), PROBLEM)
    assert [call.system for call in llm.calls] == ["Answer in one sentence.", "Answer at length."]


def test_every_call_is_repeatable(llm: Recorder) -> None:
    options = {"temperature": 0.9, "num_predict": 20}
    evaluate = TaskEvaluation(llm, TASK, mutator_model="sim-mutator", options=options, seed=7)
    evaluate(Combination({"model": "sim-target", "mutator": "shorten"}), PROBLEM)
    reword, ask = (dict(call.options) for call in llm.calls)
    assert ask == {"temperature": 0, "num_predict": 20, "seed": 7}
    assert reword | {"num_predict": 20} == ask | {"stop": ["\n"]}  # a rewording has a limit of its own


def test_a_failed_call_is_an_error_and_no_score(llm: Recorder) -> None:
    evaluate = TaskEvaluation(llm, TASK, mutator_model="no-such-model")
    with pytest.raises(ModelMissingError):
        evaluate(Combination({"model": "no-such-model"}), PROBLEM)
    with pytest.raises(ModelMissingError):
        evaluate(Combination({"model": "sim-target", "mutator": "paraphrase"}), PROBLEM)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"models": ["sim-target"]}, "cannot choose 'models'; did you mean model?"),
        ({"prompt": ["Answer."]}, "no model is named"),
        ({"model": ["sim-target"], "mutator": [None, "paraphrse"]}, "did you mean paraphrase"),
        ({"model": ["sim-target"], "mutator": ["paraphrase"]}, "name one as mutator_model"),
    ],
)
def test_choices_that_cannot_be_evaluated_are_told_before_any_call(
    llm: Recorder, choices: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        TaskEvaluation(llm, TASK).check(choices)
    TaskEvaluation(llm, TASK).check({"model": ["sim-target"], "mutator": [None, "add_politeness"]})
    assert not llm.calls


def test_the_model_that_solves_most_is_selected_and_one_that_is_not_there_never(
    dispatcher: Dispatcher,
) -> None:
    task = bundled_task()
    evaluate = TaskEvaluation(dispatcher, task)
    models = ["no-such-model", "sim-solver-small", "sim-solver-large"]
    results = ArmEliminationSelector({"model": models}, task.problems, evaluate).select_best(parallel=True)
    assert results.best.combination["model"] == "sim-solver-large"
    assert results.best.latency_s > 0
    (missing,) = (row for row in results.rows if row.combination["model"] == "no-such-model")
    assert missing.errors == missing.datapoints > 0
    assert "ModelMissingError" in str(missing.first_error)
