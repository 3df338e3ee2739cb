"""A model selection that is ready to begin: choices, dataset, evaluation, and the selector itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mutators.registry import load_mutators
from ollama_utils.types import short_name
from search.call_pool import CallPool
from search.selectors.registry import SELECTORS, make_selector, settings_of
from search.selectors.selector import Evaluate, Selector
from search.selectors.task_evaluation import TaskEvaluation
from search.task import SEED_INSTRUCTIONS, Task
from train.errors import UserError
from train.searching.calls import CallFlags
from train.searching.datasets import Prices
from train.searching.prompts import read_prompt_file

if TYPE_CHECKING:
    from search.selectors.results import SelectionResults

BY_DEFAULT = "default"
"""The name of the prompt where none is brought."""
FLAGS = ("seed", "delta", "epsilon", "threshold", "max_errors")
"""Settings that have flags of their own."""


class NamedPrompt(str):
    """A system prompt that tables call by the name of its file."""

    __slots__ = ("name",)

    def __new__(cls, name: str, text: str) -> Self:
        """The text, with a name."""
        made = super().__new__(cls, text)
        made.name = name
        return made

    name: str


def read_prompts(paths: Sequence[str]) -> list[NamedPrompt]:
    """The prompts of files, called by these files' names; by their paths where names are equal.

    Raises:
        UserError: one cannot be read, or two are equal.
    """
    stems = [Path(path).stem for path in paths]
    names = [stem if stems.count(stem) == 1 else path for stem, path in zip(stems, paths, strict=True)]
    prompts: list[NamedPrompt] = []
    for name, path in zip(names, paths, strict=True):
        prompt = NamedPrompt(name, read_prompt_file(Path(path), "--prompts"))
        if equal := [other.name for other in prompts if other == prompt]:
            raise UserError(f"--prompts {name} and {equal[0]} are the same text: name each prompt once")
        prompts.append(prompt)
    return prompts


def make_choices(
    models: Sequence[str], prompts: Sequence[NamedPrompt], mutators: Sequence[str]
) -> dict[str, list[Any]]:
    """What is chosen from, by name; what there is no choice of is not among them, but for the model.

    Raises:
        UserError: a choice is named twice, or a mutator is not there.
    """
    for flag, several in (("--models", models), ("--mutators", mutators)):
        for choice in several:
            if list(several).count(choice) > 1:
                raise UserError(f"{flag} names {choice!r} twice; name each choice once")
    try:
        load_mutators(mutators or ("noop",))
    except ValueError as error:
        raise UserError(str(error)) from error
    choices: dict[str, list[Any]] = {"model": list(models)}
    if prompts:
        choices["prompt"] = list(prompts)
    if mutators:
        choices["mutator"] = list(mutators)
    return choices


def task_evaluation(
    choices: Mapping[str, Sequence[Any]],
    task: Task,
    prices: Prices,
    pool: CallPool,
    mutator_model: str | None,
    seed: int,
    calls: CallFlags,
) -> Evaluate:
    """Evaluates on the problems of a task.

    Raises:
        UserError: a choice cannot be evaluated.
    """
    evaluation = TaskEvaluation(
        pool,
        task,
        prices,
        prompt=SEED_INSTRUCTIONS,
        mutator_model=mutator_model,
        options=calls.options,
        think=calls.think,
        seed=seed,
    )
    try:
        evaluation.check(choices)
    except ValueError as error:
        raise UserError(str(error)) from error
    return evaluation


def make(
    name: str,
    choices: Mapping[str, Sequence[Any]],
    dataset: Sequence[Any],
    evaluate: Evaluate,
    settings: Mapping[str, Any],
) -> Selector:
    """The selector of this name.

    Raises:
        UserError: there is none, it has no such settings, cannot be made with them, or has no choice.
    """
    _check_settings(name, settings)
    try:
        selector = make_selector(name, choices, dataset, evaluate, **settings)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error
    if len(selector.combinations) == 1 and name != "brute_force":
        raise UserError(
            f"{selector.combinations[0].label} alone is no choice: name several --models, --prompts or "
            "--mutators, or score it on every datapoint with --selector brute_force"
        )
    return selector


def _check_settings(name: str, settings: Mapping[str, Any]) -> None:
    known = settings_of(name) if name in SELECTORS else settings
    for setting in settings:
        if setting in known:
            continue
        if setting in FLAGS:
            raise UserError(f"the selector {name} has no setting {setting!r}: leave --{setting} out")
        own = [option for option in known if option not in FLAGS]
        accepted = f"there are {', '.join(own)}" if own else "there is none"
        raise UserError(f"the selector {name} has no --option {setting!r}; {accepted}")


def split_results(
    found: SelectionResults, names: Mapping[str, str], prices: Prices
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results, and apart from them what a resumed run finds otherwise: seconds, how slots were shared.

    Args:
        found: the results.
        names: what stands in errors for a server's address, which may be another one each time.
        prices: by model; where a model has none, and nothing else was paid, the price is None.
    """
    told = found.to_dict()
    priced = set(map(short_name, prices))
    for result, row in zip(found.rows, told["combinations"], strict=True):
        if short_name(result.combination["model"]) not in priced:
            row["price"] = row["price"] or None
        for address, name in names.items():
            row["first_error"] = row["first_error"] and row["first_error"].replace(address, name)
    latencies = {str(row["index"]): row.pop("latency_s") for row in told["combinations"]}
    plans = [list(each.plan) if each.plan else None for each in found.rounds]
    return told, {"latency_s": latencies, "plans": plans}
