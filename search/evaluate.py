"""What a combination of model, prompt and mutator makes of a datapoint, by calls to models."""

from __future__ import annotations

import functools
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mutators.mutator import Mutator
from mutators.registry import load_mutators
from ollama_utils.errors import ENDS_THE_RUN, OllamaError
from ollama_utils.parallel import ParallelError
from ollama_utils.reply_log import Question, question_of
from ollama_utils.types import Call, Completion, Think, Usage, short_name
from records.errors import UserError
from records.user_file import error_line, load_function, score_of
from search.chance import seed_of
from search.genetics import Generate, reword
from search.select import Combination, Evaluate, Evaluation
from search.task import SEED_INSTRUCTIONS, Problem, Task, ask_problem

Prices: TypeAlias = Mapping[str, tuple[float, float]]
"""By model, what a million tokens cost, read and written; other models cost nothing."""
PRICE = re.compile(r"(?P<model>.+)=(?P<read>\d*\.?\d+):(?P<written>\d*\.?\d+)")


def evaluation_of(
    score: float, calls: Sequence[tuple[str, Completion]], prices: Prices
) -> Evaluation:
    """A score from 0 to 1, with what its calls took: the model of each, and the reply."""
    price_of = {short_name(model): price for model, price in prices.items()}
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
class TaskEvaluation:
    """Asks the model of a combination a problem, in the way that it says, and scores the reply.

    A combination may have the keys `model`, `prompt` and `mutator` (which rewords the question
    first); without a model or a prompt those below count.
    """

    generate: Generate
    task: Task
    """Its scorer says what a reply is worth."""
    prices: Prices = field(default_factory=dict)
    model: str | None = None
    """As the server lists it."""
    prompt: str = SEED_INSTRUCTIONS
    """Instructions, or their name among `prompts`."""
    mutator_model: str | None = None
    """Rewords for mutators that need a model."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ollama's, of every call; the temperature is 0."""
    think: Think | None = None
    """Whether a thinking model thinks; None leaves it to the server."""
    seed: int = 0
    """Of every call, and of what a mutator draws."""
    _mutators: dict[str, Mutator] = field(default_factory=dict, init=False, repr=False)

    def check(self, choices: Mapping[str, Sequence[Any]]) -> None:
        """Raise ValueError if a mutator of these choices does not exist, or needs a model."""
        for mutator in map(self._mutator, choices.get("mutator", ())):
            if mutator and mutator.kind == "model" and self.mutator_model is None:
                raise ValueError(_no_mutator_model(mutator))

    def _mutator(self, name: str | None) -> Mutator | None:
        """A mutator by its name; the file of a user's own is loaded once."""
        if name is not None and name not in self._mutators:
            (self._mutators[name],) = load_mutators((name,))
        return None if name is None else self._mutators[name]

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
        mutator = self._mutator(combination.get("mutator"))
        question, calls = problem.question, []
        if mutator:
            options = {**self.options, "temperature": 0}
            if mutator.kind == "model" and self.mutator_model is None:
                raise ValueError(_no_mutator_model(mutator))
            template = Call(model=self.mutator_model or "", prompt="", options=options)
            send = functools.partial(_reply, self.generate)
            new, replies = reword(send, template, mutator, question, seed=self.seed)
            calls += [(template.model, reply) for reply in replies]
            question = new or question
        prompt = combination.get("prompt", self.prompt)
        asked = self.question(replace(problem, question=question), model, prompt)
        reply = _reply(self.generate, asked)
        calls.append((model, reply))
        return evaluation_of(self.task.scorer(problem, reply.text), calls, self.prices)

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


def _no_mutator_model(mutator: Mutator) -> str:
    return f"mutator {mutator.name!r} rewords by a model; name mutator_model"


def _reply(generate: Generate, call: Call) -> Completion:
    reply = generate(call)
    if reply.error is not None:
        raise reply.error
    return reply


def _seeded(call: Call, seed: int, equal: Counter[Question]) -> Call:
    """The call; one left to chance with the seed of the next of its equals, which are counted."""
    if call.repeatable:
        return call
    unseeded = question_of(replace(call, options={**call.options, "seed": seed}))
    options = {**call.options, "seed": seed_of(seed, "ask", equal[unseeded])}
    equal[unseeded] += 1
    return replace(call, options=options)


class OwnError(Exception):
    """A user's own evaluation raised what is no failed call, or returned no score."""


def load_evaluation(
    spec: str,
    generate: Generate,
    *,
    prices: Prices,
    prompts: Mapping[str, str],
    options: Mapping[str, Any],
    think: Think | None,
    seed: int,
) -> Evaluate:
    """A user's function `(combination, datapoint, ask)`, of `FILE.py:NAME`, as an evaluation.

    `ask(question, model=None, system=None)` returns a `Completion`. A text is sent to the model of
    the combination, or another one, under its prompt (the name of one of `prompts`), or another
    one, at a temperature of 0. A `Call` is sent as it is; only where it is neither greedy nor has a
    seed it is given one: each equal Call of an evaluation draws a reply of its own, the same in
    every run of this seed. What `ask` raises, an OllamaError, is an error of the combination;
    whatever else fails in the function is an OwnError.

    Raises:
        ValueError: there is no such function.
    """
    function = load_function(spec, ("combination", "datapoint", "ask"), "evaluation")

    def evaluate(combination: Combination, datapoint: Any) -> Evaluation:  # noqa: ANN401 - a user's line
        if "prompt" in combination:
            combination = {**combination, "prompt": prompts[combination["prompt"]]}
        asked: list[tuple[str, Completion]] = []
        equal: Counter[Question] = Counter()
        lock = threading.Lock()  # a user's function may ask on several threads

        def ask(
            question: object, *, model: str | None = None, system: str | None = None
        ) -> Completion:
            if isinstance(question, str):
                call = Call(
                    model=combination["model"] if model is None else model,
                    prompt=question,
                    system=combination.get("prompt") if system is None else system,
                    options={**options, "temperature": 0},
                    think=think,
                )
            elif isinstance(question, Call) and model is None and system is None:
                call = question
            else:
                expected = "a text, with model= and system= or without, or a Call alone"
                raise TypeError(f"ask expected {expected}, got {question!r}")
            with lock:
                call = _seeded(call, seed, equal)
            reply = _reply(generate, call)
            asked.append((call.model, reply))
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
        return evaluation_of(score, asked, prices)

    return evaluate
