"""What a combination of model, prompt and mutator makes of a datapoint, by calls to models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mutators.mutator import Mutator
from mutators.registry import load_mutators
from ollama_utils.errors import ENDS_THE_RUN, OllamaError
from ollama_utils.parallel import ParallelError
from ollama_utils.types import Call, Completion, Think, Usage, short_name
from records.errors import UserError
from records.user_file import error_line, load_function, score_of
from search.genetics import Generate, reword
from search.select import Combination, Evaluate, Evaluation
from search.task import SEED_INSTRUCTIONS, Problem, Task, ask_problem

Prices: TypeAlias = Mapping[str, tuple[float, float]]
"""By model, what a million tokens cost, read and written; other models cost nothing."""
PRICE = re.compile(r"(?P<model>.+)=(?P<read>\d*\.?\d+):(?P<written>\d*\.?\d+)")


def read_prices(prices: Sequence[str]) -> dict[str, tuple[float, float]]:
    """The prices of `--price MODEL=IN:OUT`; raises UserError."""
    found = {}
    for text in prices:
        if not (parts := PRICE.fullmatch(text)):
            raise UserError(
                f"--price is {text!r}; expected MODEL=IN:OUT, the price of a million tokens read "
                "and of a million written, as in llama3.2=0.1:0.4"
            )
        found[parts["model"]] = float(parts["read"]), float(parts["written"])
    return found


@dataclass(frozen=True, kw_only=True)
class Models:
    """How the models of combinations are called, and what that costs."""

    generate: Generate
    prices: Prices = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    """System prompts by the names that combinations give them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ollama's, of every call; the temperature is 0."""
    think: Think | None = None
    """Whether a thinking model thinks; None leaves it to the server."""
    seed: int = 0
    """Of every call, and of what a mutator draws."""

    def reply(self, call: Call) -> Completion:
        """The reply; raises the OllamaError of a call that failed."""
        reply = self.generate(call)
        if reply.error is not None:
            raise reply.error
        return reply

    def evaluation(self, score: float, calls: Sequence[tuple[str, Completion]]) -> Evaluation:
        """A score from 0 to 1, with what its calls took: the model of each, and the reply."""
        price_of = {short_name(model): price for model, price in self.prices.items()}
        price, usages = 0.0, [reply.usage or Usage() for _, reply in calls]
        for (model, _), usage in zip(calls, usages, strict=True):
            read, written = price_of.get(short_name(model), (0.0, 0.0))
            price += (usage.prompt_tokens * read + usage.completion_tokens * written) / 1e6
        return Evaluation(
            score,
            latency_s=sum(usage.total_s for usage in usages),
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            price=price,
        )


@dataclass(frozen=True, kw_only=True)
class TaskEvaluation(Models):
    """Asks the model of a combination a problem, in the way that it says, and scores the reply.

    A combination may have the keys `model`, `prompt` and `mutator` (which rewords the question
    first); without a model or a prompt those below count.
    """

    task: Task
    """Its scorer says what a reply is worth."""
    model: str | None = None
    """As the server lists it."""
    prompt: str = SEED_INSTRUCTIONS
    """Instructions, or their name among `prompts`."""
    mutator_model: str | None = None
    """Rewords for mutators that need a model."""
    _mutators: dict[str, Mutator] = field(default_factory=dict, init=False, repr=False)

    def check(self, choices: Mapping[str, Sequence[Any]]) -> None:
        """Raise ValueError if a mutator of these choices does not exist, or needs a model."""
        for name in filter(None, choices.get("mutator", ())):
            self._mutator(name)

    def _mutator(self, name: str) -> Mutator:
        """A mutator by its name; the file of a user's own is loaded once."""
        if name not in self._mutators:
            (self._mutators[name],) = load_mutators((name,))
        mutator = self._mutators[name]
        if mutator.kind == "model" and self.mutator_model is None:
            raise ValueError(f"mutator {mutator.name!r} rewords by a model; name mutator_model")
        return mutator

    def __call__(self, combination: Combination, problem: Problem) -> Evaluation:
        """The score of the reply, with the seconds and tokens that the server reported.

        Raises:
            OllamaError: a call failed.
            ValueError: no model is named that answers, or that rewords.
            MutatorError: a mutator's function raised.
            ScorerError: the task's scorer raised.
        """
        model = combination.get("model", self.model)
        if model is None:
            raise ValueError("no model is named; expected a choice of `model`, or `model=...`")
        asked, calls = problem, []
        if name := combination.get("mutator"):
            options = {**self.options, "temperature": 0}
            template = Call(model=self.mutator_model or "", prompt="", options=options)
            mutator = self._mutator(name)
            text, replies = reword(self.reply, template, mutator, problem.question, seed=self.seed)
            calls += [(template.model, reply) for reply in replies]
            asked = replace(problem, question=text or problem.question)
        prompt = combination.get("prompt", self.prompt)
        reply = self.reply(self.question(asked, model, prompt))
        calls.append((model, reply))
        return self.evaluation(self.task.scorer(problem, reply.text), calls)

    def question(self, problem: Problem, model: str, prompt: str) -> Call:
        """What asks a model a problem, under a prompt or the one of this name."""
        return ask_problem(
            problem,
            self.prompts.get(prompt, prompt),
            model=model,
            options={**self.options, "temperature": 0},
            think=self.think,
            seed=self.seed,
        )


class OwnError(Exception):
    """A user's own evaluation raised what is no failed call, or returned no score."""


def load_evaluation(spec: str, models: Models) -> Evaluate:
    """A user's function `(combination, datapoint, ask)`, of `FILE.py:NAME`, as an evaluation.

    `ask(text, model=None, system=None)` returns the `Completion` of the combination's model, or
    another one, under its prompt, or another one, at a temperature of 0. What it raises, an
    OllamaError, is an error of the combination; what else fails in the function is an OwnError.

    Raises ValueError if there is no such function.
    """
    function = load_function(spec, ("combination", "datapoint", "ask"), "evaluation")

    def evaluate(combination: Combination, datapoint: Any) -> Evaluation:  # noqa: ANN401 - a user's line
        if "prompt" in combination:
            combination = {**combination, "prompt": models.prompts[combination["prompt"]]}
        asked: list[tuple[str, Completion]] = []

        def ask(text: str, *, model: str | None = None, system: str | None = None) -> Completion:
            call = Call(
                model=combination["model"] if model is None else model,
                prompt=text,
                system=combination.get("prompt") if system is None else system,
                options={**models.options, "temperature": 0},
                think=models.think,
            )
            reply = models.reply(call)
            asked.append((call.model, reply))  # on any thread
            return reply

        try:
            found = function(combination, datapoint, ask)
        except (Exception, SystemExit) as error:
            cause = error.__cause__ if isinstance(error, ParallelError) else error
            if isinstance(cause, (OllamaError, *ENDS_THE_RUN)):
                raise cause from None
            raise OwnError(error_line(spec, error)) from error
        if isinstance(found, Evaluation):
            return found
        if (score := score_of(found)) is None:
            raise OwnError(f"expected a score from 0 to 1, got {found!r:.60}")
        return models.evaluation(score, asked)

    return evaluate
