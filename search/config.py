"""What all searches share: their flags, the ranges of numbers, a user's prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Parameter

from ollama_utils.types import ThinkWord
from records.errors import UserError, as_user_error
from records.json_lines import read_text
from records.settings import (
    Count,
    JsonPlace,
    NotNegative,
    Seed,
    Share,
    absolute,
    located_function,
    with_flags,
)
from records.terminal import prints_on_stderr
from records.trust import is_prompt_file
from search.task import Task, bundled_task, read_task


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What is searched on, and where it is kept."""

    task: Annotated[str | None, Parameter(name=("--task", "--dataset"))] = None
    """A file of problems, JSONL or CSV, each with `question` and `answer` [the bundled task]."""
    answer_column: str | None = None
    """The column of the right answers [answer or answers]."""
    scorer: str | None = None
    """How a reply is compared with the right answers: exact, number, choice, f1 or contains; or
    FILE.py:NAME, a function (problem, reply) -> float from 0 to 1, which several threads call at
    once [the same number, else the same words]."""
    seed: Seed = 0
    """Same seed, same results."""
    rate_limit_per_minute: NotNegative | None = None
    """Most calls a minute, each attempt counted; 0 sets no limit [none, or that of evolve's
    --preset]."""
    max_failed: Share = 0.5
    """The search stops, saved, once more than this share of recent calls failed; in select, a call
    that a server answers with an error counts against its model alone."""
    format: Literal["table", "json"] = "table"
    """How the report is written to stdout."""
    run_dir: Path | None = None
    """The search's folder, new or empty [runs/COMMAND-TIME-SEED]."""
    resume: Path | None = None
    """Go on with the search in this folder: what was answered is not asked again. Hosts, limits and
    the scorer may be others than before, in select --evaluate and --max-errors, in evolve
    --max-generations and --patience too, and nothing else. Code, hosts and files that it names have
    to be named again, or --trust-run uses them."""
    cache: Path | None = None
    """A folder of replies and embeddings that runs share: what it has is not asked again."""
    json: JsonPlace = None
    """Write the report here too, as JSON; `-` is stdout, in the place of tables."""

    def located(self) -> SearchConfig:
        """The same with absolute paths, so that its file means the same in every folder."""
        return replace(self, task=absolute(self.task), scorer=located_function(self.scorer))

    def read_task(self) -> Task:
        """The task that is searched on; raises UserError if the file or the scorer is no good."""
        if self.task is not None:
            with as_user_error(ValueError), prints_on_stderr():
                return read_task(Path(self.task), self.scorer, answer_column=self.answer_column)
        if self.scorer is not None or self.answer_column is not None:
            raise UserError("--scorer and --answer-column are for a file of your own: add --task")
        return bundled_task()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CallFlags:
    """What every call of a search carries, whatever is asked."""

    num_ctx: Count | None = None
    """Context length of the models [the server's]."""
    num_predict: Count = 512
    """Most tokens of an answer or a rewording; a rewording that is cut is not taken."""
    think: ThinkWord | None = None
    """Whether a thinking target thinks, or how much [the server's choice]; thoughts are not
    scored."""

    @property
    def context(self) -> dict[str, Any]:
        """Ollama's options of all calls: another context length makes it load the model anew."""
        return {"num_ctx": self.num_ctx} if self.num_ctx else {}

    @property
    def options(self) -> dict[str, Any]:
        """Ollama's options of the calls that answer or reword."""
        return {**self.context, "num_predict": self.num_predict}


def located_prompt(text: str) -> str:
    """The whole path of a prompt's file; a prompt that is a text as it is."""
    return str(absolute(text)) if is_prompt_file(text) else text


def read_prompt(text: str, flag: str, *, is_file: bool = False) -> str:
    """A prompt: the text itself, or, if it is a path or `is_file`, what is in that file.

    Raises UserError if the file cannot be read, or there is nothing in it; `flag` is named.
    """
    prompt = text
    if is_file or is_prompt_file(text):
        try:
            prompt = read_text(Path(text))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"{flag} names {text!r}; expected a prompt in UTF-8: {why}") from error
    if not prompt.strip():
        raise UserError(f"{flag} is {text!r}, with nothing in it; expected a system prompt")
    return prompt.strip()


def check_numbers(values: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Check numbers against the types of `records.settings`, both by name; raises ValueError."""
    for name, value in values.items():
        hint = types.get(name)
        for part in (hint, *get_args(hint)):
            base: Any = getattr(part, "__origin__", None)
            kind = {int: Integral, float: Real}.get(base)
            if kind is None or (value is None and type(None) in get_args(hint)):
                continue
            is_number = isinstance(value, kind)
            if not is_number:
                expected = "a whole number" if kind is Integral else "a number"
                raise ValueError(f"{name} is {value!r}; expected {expected}")
            for check in (check for mark in part.__metadata__ for check in mark.validator):
                try:
                    check(kind, value)
                except ValueError as error:
                    limit = str(error).removesuffix(".").lower()
                    raise ValueError(f"{name} is {value!r}: it {limit}") from error


@contextmanager
def as_flag_error(prefix: str = "") -> Iterator[None]:
    """Within `with`: a ValueError about a setting becomes a UserError about its flag."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{prefix}{with_flags(error)}") from error
