"""What a combination of model, prompt and mutator makes of one problem of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mutators.cleaning import clean
from mutators.mutator import Mutator
from mutators.registry import load_mutators
from ollama_utils.types import Call, Completion, Usage, short_name
from records.errors import nearest
from search.selectors.combination import Combination
from search.selectors.selector import Evaluation
from search.task import SEED_INSTRUCTIONS, Problem, Task, ask_problem

KEYS = ("model", "prompt", "mutator")
"""What can be chosen."""
_PER_TOKENS = 1_000_000


class Answers(Protocol):
    """Sends one call, as a Dispatcher does."""

    def generate(self, call: Call) -> Completion:
        """The reply, its error in place of an exception."""


class TaskEvaluation:
    """Puts a problem to the model that a combination names, in the way it says, and scores the reply.

    A combination may have the keys `model` (as the server lists it), `prompt` (instructions, or a name among
    `prompts`) and `mutator` (of `mutators/`, or None: it rewords the question before the model sees it). A
    key that it lacks has its fixed value.

    Args:
        llm: sends the calls.
        task: whose scorer says what a reply is worth.
        prices: by model, what a million prompt tokens and a million completion tokens cost, in any currency;
            a model that is not among them costs nothing.
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
        llm: Answers,
        task: Task,
        prices: Mapping[str, tuple[float, float]] | None = None,
        *,
        model: str | None = None,
        prompt: str = SEED_INSTRUCTIONS,
        mutator: str | None = None,
        mutator_model: str | None = None,
        prompts: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        think: bool | None = None,
        seed: int = 0,
    ) -> None:
        self._llm = llm
        self._score = task.scorer
        self._prices = {short_name(name): price for name, price in (prices or {}).items()}
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
        question, reworded = self._reword(self._mutator(chosen["mutator"]), problem)
        call = ask_problem(
            replace(problem, question=question),
            self._prompts.get(chosen["prompt"], chosen["prompt"]),
            model=self._named(chosen["model"]),
            options=self._options | {"temperature": 0},
            think=self._think,
            seed=self._seed,
        )
        reply = self._ask(call)
        calls = [*reworded, (call.model, reply.usage or Usage())]
        return Evaluation(
            score=self._score(problem, reply.text),
            latency_s=sum(usage.total_s for _, usage in calls),
            prompt_tokens=sum(usage.prompt_tokens for _, usage in calls),
            completion_tokens=sum(usage.completion_tokens for _, usage in calls),
            price=sum(self._price(model, usage) for model, usage in calls),
        )

    def _reword(self, mutator: Mutator | None, problem: Problem) -> tuple[str, list[tuple[str, Usage]]]:
        """The question as the model is to see it, and what rewording it took."""
        question = problem.question
        if mutator is None:
            return question, []
        if mutator.kind == "rule":
            return mutator.apply(question, (), self._seed) or question, []
        call = Call(
            model=self._named(self._mutator_model),
            prompt=mutator.prompt(question, (), self._seed),
            options=self._options | {"temperature": 0, "seed": self._seed},
            think=self._think and None,  # never made to think: it may be a model that cannot
        )
        reply = self._ask(call)
        text = "" if reply.truncated else clean(reply.text, question)
        return text or question, [(call.model, reply.usage or Usage())]

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

    def _price(self, model: str, usage: Usage) -> float:
        prompt, completion = self._prices.get(short_name(model), (0.0, 0.0))
        return (usage.prompt_tokens * prompt + usage.completion_tokens * completion) / _PER_TOKENS
