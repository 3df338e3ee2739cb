"""What all searches share: their flags, the task that is searched on, a user's prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cli.formats import Format, prints_on_stderr
from ollama_utils.types import ThinkWord
from records.errors import UserError, as_user_error
from records.json_lines import read_text
from records.run_folder import check_places
from records.settings import Count, JsonPlace, NotNegative, Seed, Share, absolute, with_flags
from records.trust import is_prompt_file

if TYPE_CHECKING:
    from search.task import Task

MAY_CHANGE = ("rate-limit-per-minute", "max-failed", "format", "scorer")
"""The options that any resumed search may change, beside those of hosts and limits: nothing that a
reply depends on. It is played again from its start over the replies it has: another scorer may lead
it elsewhere, and it is still one search."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What is searched on, and where it is kept."""

    task: Annotated[str | None, Parameter(name=("--task", "--dataset"))] = None
    """A file of problems, JSONL or CSV, each with `question` and `answer` [the bundled task]."""
    answer_column: str | None = None
    """The column of the right answers [answer or answers]."""
    scorer: str | None = None
    """What a reply is worth by the right answers: exact, number, choice, f1 or contains; or
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
    format: Format = "table"
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

    def check_places(self) -> None:
        """Check the folders and files, without a server.

        Raises:
            UserError: one of them cannot be used.
        """
        check_places(resume=self.resume, run_dir=self.run_dir, json=self.json, cache=self.cache)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CallFlags:
    """What every call of a search carries, whatever is asked."""

    num_ctx: Count | None = None
    """Context length of the models [the server's]."""
    think: ThinkWord | None = None
    """Whether a thinking target thinks, or how much [the server's choice]; thoughts are not
    scored."""

    @property
    def options(self) -> dict[str, Any]:
        """Ollama's options; a context length is that of all calls: a change reloads the model."""
        return {"num_ctx": self.num_ctx} if self.num_ctx else {}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LimitedCallFlags(CallFlags):
    """Those of a search that has no other limit on the length of a reply."""

    num_predict: Count = 512
    """Most tokens of an answer or a rewording; a rewording that is cut is not taken."""

    @property
    def options(self) -> dict[str, Any]:
        """Ollama's options of the calls that answer or reword."""
        return super().options | {"num_predict": self.num_predict}


def load_task(config: SearchConfig) -> Task:
    """The task that is searched on.

    Raises:
        UserError: the file or the scorer is no good.
    """
    from search.task import bundled_task, read_task

    if config.task is None:
        for flag, value in (
            ("--scorer scores the problems", config.scorer),
            ("--answer-column is a column", config.answer_column),
        ):
            if value is not None:
                raise UserError(f"{flag} of a file of your own: name it with --task")
        return bundled_task()
    with as_user_error(ValueError), prints_on_stderr():
        return read_task(Path(config.task), config.scorer, answer_column=config.answer_column)


def split_task(task: Task, held_out: float, seed: int) -> tuple[Task, Task]:
    """The problems that a search sees, and those that are held out.

    Raises:
        UserError: one of the two would be empty.
    """
    try:
        return task.split(held_out, seed)
    except ValueError as error:
        raise UserError(with_flags(error)) from error


def task_fingerprint(task: Task) -> dict[str, str]:
    """What identifies the task, by its name; its scorer may change."""
    digest = sha256()
    for problem in task.problems:
        parts = (problem.id, problem.question, str(problem.answer), problem.kind, "", *problem.others)
        digest.update("\0".join(parts).encode())
    return {f"task {task.name}": digest.hexdigest()}


def located_function(text: str | None) -> str | None:
    """`mine.py:grade` with the file's whole path."""
    file, colon, name = (text or "").rpartition(":")
    return f"{absolute(file)}:{name}" if colon else text


def located_prompt(text: str) -> str:
    """The whole path of a prompt's file; a prompt that is a text as it is."""
    return str(absolute(text)) if is_prompt_file(text) else text


def read_prompt(text: str, flag: str) -> str:
    """The prompt itself.

    Args:
        text: the prompt, or the path of its file.
        flag: is named in the error.

    Raises:
        UserError: the file cannot be read, or there is nothing in it.
    """
    if is_prompt_file(text):
        return read_prompt_file(Path(text), flag)
    return _checked(text.strip(), flag, "a text")


def read_prompt_file(path: Path, flag: str) -> str:
    """The one prompt of a file.

    Raises:
        UserError: it cannot be read, or there is nothing in it.
    """
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{flag} names {str(path)!r}; expected a file with a prompt, in UTF-8: {why}"
        ) from error
    return _checked(text.strip(), flag, repr(str(path)))


def prompt_fingerprints(prompts: Mapping[str, str]) -> dict[str, str]:
    """What identifies prompts, by their names."""
    return {f"prompt {name}": sha256(text.encode()).hexdigest() for name, text in prompts.items()}


def _checked(text: str, flag: str, what: str) -> str:
    if not text:
        raise UserError(f"{flag} is given {what} with nothing in it; expected a system prompt")
    return text
