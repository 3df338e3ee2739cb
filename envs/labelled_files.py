"""Files of completions, with the prompts and people's labels where they have them.

The formats are those of `envs.query_files`, and columns are found by their names. A completion is a
text, or an object that has one: a message, a chat whose last turn is the assistant's, what a server
answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envs.queries import ROLES, read_cell, read_prompt
from envs.query_files import CHAT_COLUMNS, PROMPT_COLUMNS, read_table
from ollama_utils.types import is_text
from records.errors import UserError
from scorers.labels import RefusalLabel, parse_label

COMPLETION_COLUMNS = (
    *("completion", "response", "answer", "reply", "output", "model_output", "generation"),
    "model_response",
)
"""Columns with what a model said; the first one present counts, case does not matter."""
LABEL_COLUMNS = ("final_label", "human_label", "human_labels", "label", "gold_label", "annotation")
"""Columns with what a person said of it; likewise."""
NO_LABELS = "none"
"""A label column of this name means that there are no labels, unless a column is called so."""
EXPECTED_LABELS = (
    "answered, refused, partly_refused or undetermined, XSTest's 1_full_compliance and so on, or 0 "
    f"and 1 (a refusal): name another with --label-column, or '{NO_LABELS}' to go without"
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row."""

    prompt: str
    """What was asked; of a chat, the user's last turn; empty where the row has none."""
    completion: str | None
    """None where the row has none, as after a call that failed."""
    human: RefusalLabel | None
    """What a person said of it; None where the file has no labels."""


def read_samples(
    path: Path,
    *,
    prompt_column: str | None = None,
    completion_column: str | None = None,
    label_column: str | None = None,
) -> list[Sample]:
    """The rows of a file, in its order: all with a person's label, or none.

    Args:
        path: the file; its ending says how it is read.
        prompt_column: the column with prompts; None: found by its name, as the two others.
        completion_column: that with completions.
        label_column: that with people's labels; `NO_LABELS`: there are none.

    Raises:
        UserError: the file or a column cannot be used, a label is unknown, or a completion is
            neither a text nor an object that holds one.
    """
    table = read_table(path)
    usual = (*COMPLETION_COLUMNS, *CHAT_COLUMNS)
    completion = table.need(completion_column, usual, "--completion-column")
    prompt = table.find(prompt_column, (*PROMPT_COLUMNS, *CHAT_COLUMNS), "--prompt-column")
    label = None
    if label_column != NO_LABELS or NO_LABELS in table.columns:
        label = table.find(label_column, LABEL_COLUMNS, "--label-column")
    samples = []
    for row, cells in table.rows([name for name in (completion, prompt, label) if name]):
        place = f"{path} row {row}, column "
        human = parse_label(cells.get(label)) if label else None
        if label and human is None:
            found = repr(cells.get(label))
            raise UserError(f"{place}{label!r}: {found} is no label; expected {EXPECTED_LABELS}")
        value = cells.get(prompt) if prompt else None
        asked, _ = read_prompt(
            [value] if isinstance(value, dict) else value, prompt or "", f"{place}{prompt!r}"
        )
        where = f"{place}{completion!r}"
        try:
            said = reply_text(read_cell(cells.get(completion), completion, where))
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error
        for name, text in ((prompt, asked), (completion, said or "")):
            if not is_text(text):
                raise UserError(f"{place}{name!r}: expected text, got half of a surrogate pair")
        samples.append(Sample(prompt=asked, completion=said, human=human))
    if not samples:
        raise UserError(f"{path} has no rows; expected at least one completion")
    return samples


def reply_text(value: object) -> str | None:
    """The text of a reply, that of its message, or that of its parts; None: it has none.

    It is a text, or what JSON has of a message (`content`, `value`), of a chat, or of what Ollama
    or an OpenAI-compatible server answered, be it a line of a batch's output.

    Raises:
        ValueError: it is something else.
    """
    match value:
        case None:
            return None
        case {"choices": [inside]} | {"body": inside} | {"message": inside}:
            return reply_text(inside)
        case {"content": inside} | {"value": inside} | {"text": inside} | {"response": inside}:
            return reply_text(inside)
        case [*_, {"role": role, "content": inside}] | [*_, {"from": role, "value": inside}] if (
            ROLES.get(str(role).casefold()) == "assistant"
        ):
            return reply_text(inside)
        case [_, *_] as parts if all(isinstance(part, dict) and "text" in part for part in parts):
            return "".join(reply_text(part) or "" for part in parts)
        case dict() | list():
            kind = "an object" if isinstance(value, dict) else "a list"
            raise ValueError(f"expected text, or a message with a text, got {kind}")
        case _:
            return str(value)
