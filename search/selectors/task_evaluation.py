"""What a combination of model, prompt and mutator makes of one problem of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mutators.mutator import Mutator
from mutators.registry import load_mutators
from ollama_utils.types import Call, Completion, Think
from records.errors import nearest
from scorers.json_replies import Model
from search.rewording import Rewriter, reworded
from search.selectors.combination import Combination
from search.selectors.results import Evaluation, Prices
from search.task import SEED_INSTRUCTIONS, Problem, Task, ask_problem

KEYS = ("model", "prompt", "mutator")
"""What can be chosen."""


class TaskEvaluation:
    """Puts a problem to the model that a combination names, in the way it says, and scores the reply.

    A combination may have the keys `model` (as the server lists it), `prompt` (instructions, or a name among
    `prompts`) and `mutator` (of `mutators/`, or None: it rewords the question before the model sees it). A
    key that it lacks has its fixed value.

    Args:
        llm: sends the calls.
        task: whose scorer says what a reply is worth.
        prices: a model that is not among them costs nothing.
        model: the model where none is chosen.
        prompt: the instructions where none are chosen.
        mutator: the mutator where none is chosen; None: the question as it is.
        mutator_model: the model that rewords for mutators that need one.
        prompts: instructions by name.
        options: Ollama's options for every call; the temperature is 0 whatever they say.
        think: whether a thinking model thinks; None leaves it to the server.
        seed: of every call, and of what a mutator draws.
    """

    def __init__(  # noqa: PLR0913 - what can be fixed
        self,
        llm: Model,
        task: Task,
        prices: Prices | None = None,
        *,
        model: str | None = None,
        prompt: str = SEED_INSTRUCTIONS,
        mutator: str | None = None,
        mutator_model: str | None = None,
        prompts: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        think: Think | None = None,
        seed: int = 0,
    ) -> None:
        self._llm = llm
        self._score = task.scorer
        self._prices = prices or {}
        self._fixed: dict[str, Any] = {"model": model, "prompt": prompt, "mutator": mutator}
        self._mutator_model = mutator_model
        self._prompts = dict(prompts or {})
        self._options = dict(options or {})
        self._think = think
        self._seed = seed

    def check(self, choices: Mapping[str, Sequence[Any]]) -> None:
        """Whether every combination of these choices can be evaluated, before any call is paid for.

        Raises:
            ValueError: a key that is not there, no model, an unknown mutator, or one that needs a model to
                reword and none is given; one line says which.
        """
        for key in choices:
            if key not in KEYS:
                raise ValueError(f"cannot choose {key!r}; {nearest(key, KEYS)}")
        if "model" not in choices and self._fixed["model"] is None:
            raise ValueError("no model is named; expected choices under 'model', or a fixed model")
        for name in choices.get("mutator", [self._fixed["mutator"]]):
            self._mutator(name)

    def __call__(self, combination: Combination, problem: Problem) -> Evaluation:
        """The score of the reply, with the seconds and tokens that the server reported.

        Raises:
            OllamaError: a call failed.
            ValueError: as `check` does.
            MutatorError: a mutator's function raised.
        """
        chosen = self._fixed | dict(combination)
        question, calls = self._reword(self._mutator(chosen["mutator"]), problem.question)
        call = self.question(
            replace(problem, question=question), self._named(chosen["model"]), chosen["prompt"]
        )
        reply = self._ask(call)
        calls = [*calls, (call.model, reply)]
        return Evaluation.of_calls(self._score(problem, reply.text), calls, self._prices)

    def question(self, problem: Problem, model: str, prompt: str) -> Call:
        """What asks a model a problem, with a prompt or the one of this name."""
        return ask_problem(
            problem,
            self._prompts.get(prompt, prompt),
            model=model,
            options=self._options | {"temperature": 0},
            think=self._think,
            seed=self._seed,
        )

    def _reword(self, mutator: Mutator | None, question: str) -> tuple[str, list[tuple[str, Completion]]]:
        """The question as the model is to see it, and the calls that rewording it took."""
        if mutator is None:
            return question, []
        if mutator.kind == "rule":
            return mutator.apply(question, (), self._seed) or question, []
        rewriter = Rewriter(
            model=self._named(self._mutator_model),
            options=self._options | {"temperature": 0},
        )
        reply = self._ask(rewriter.call(mutator, question, (), self._seed))
        return reworded(reply, question) or question, [(rewriter.model, reply)]

    def _ask(self, call: Call) -> Completion:
        reply = self._llm.generate(call)
        if reply.error is not None:
            raise reply.error
        return reply

    def _mutator(self, name: str | None) -> Mutator | None:
        """The mutator of this name; None for none."""
        if name is None:
            return None
        (mutator,) = load_mutators((name,))
        if mutator.kind == "model" and self._mutator_model is None:
            raise ValueError(f"mutator {name!r} rewords by a model; name one as mutator_model")
        return mutator

    def _named(self, model: str | None) -> str:
        if model is None:
            raise ValueError("no model is named; expected choices under 'model', or a fixed model")
        return model
