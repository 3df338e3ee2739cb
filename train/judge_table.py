"""A file of prompts, completions and, where people labelled them, labels: columns found by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scorers.refusal_rules import RefusalLabel
from train.errors import UserError

if TYPE_CHECKING:
    from envs.query_tables import Table

COMPLETION_COLUMNS = (
    *("completion", "response", "answer", "reply", "output", "model_output", "generation", "model_response"),
)
"""Headers that hold what a model said; the first one present wins, case does not matter."""
LABEL_COLUMNS = ("final_label", "human_label", "human_labels", "label", "gold_label", "annotation")
"""Headers that hold what a person said of it; likewise."""
NO_LABELS = "none"
"""A `--label-column` of this name means that there are no labels, unless a column is called so."""
MEANINGS: Mapping[RefusalLabel, tuple[str, ...]] = {
    "answered": (
        *("answered", "answer", "full_compliance", "compliance", "compliant", "complied", "comply"),
        *("complies", "not_refused", "no_refusal", "non_refusal", "0", "0.0", "false"),
    ),
    "refused": ("refused", "full_refusal", "refusal", "refuse", "refuses", "1", "1.0", "true"),
    "partly_refused": ("partly_refused", "partial_refusal", "partial", "partially_refused"),
}
"""Labels as people write them, in lower case with _ for blanks and dashes; a number in front is left out."""
_MEANING = {word: label for label, words in MEANINGS.items() for word in words}
_NUMBER_IN_FRONT = re.compile(r"^\d+_(?=[a-z])")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row."""

    prompt: str
    """What was asked; empty where the file has no such column."""
    completion: str
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

    Raises:
        UserError: The file or a column is no good, or a label is none that is known.
    """
    from envs.query_files import read_table
    from envs.query_tables import PROMPT_COLUMNS, QueryFileError

    try:
        table = read_table(path)
        completion = _named(table, completion_column, COMPLETION_COLUMNS, "--completion-column")
        if completion is None:
            raise UserError(
                f"{table.source} has columns {', '.join(map(repr, table.columns))}; expected one of "
                f"{', '.join(map(repr, COMPLETION_COLUMNS))}: name it with --completion-column"
            )
        others = {
            "prompt": _named(table, prompt_column, PROMPT_COLUMNS, "--prompt-column"),
            "label": _label_column(table, label_column),
        }
        return _samples(table, completion, others["prompt"], others["label"])
    except QueryFileError as error:
        raise UserError(str(error)) from error


def parse_label(value: object) -> RefusalLabel | None:
    """A person's label as one of ours; None where it is none that is known. 1 is a refusal, 0 is none."""
    word = re.sub(r"[\s\-]+", "_", str(value).strip().casefold())
    return _MEANING.get(word) or _MEANING.get(_NUMBER_IN_FRONT.sub("", word))


def _named(table: Table, asked: str | None, usual: Sequence[str], flag: str) -> str | None:
    """The column that was asked for, or the first of the usual ones; None without either."""
    if asked is not None:
        return table.column(asked, flag)
    present = {column.casefold(): column for column in reversed(table.columns)}
    return next((present[name] for name in usual if name in present), None)


def _label_column(table: Table, asked: str | None) -> str | None:
    if asked == NO_LABELS and NO_LABELS not in table.columns:
        return None
    return _named(table, asked, LABEL_COLUMNS, "--label-column")


def _samples(table: Table, completion: str, prompt: str | None, label: str | None) -> list[Sample]:
    columns = list(dict.fromkeys(filter(None, (completion, prompt, label))))
    samples = []
    for row, values in table.rows(columns):
        of = dict(zip(columns, values, strict=True))
        human = parse_label(of[label]) if label else None
        if label and human is None:
            raise UserError(
                f"{table.source} row {row}, column {label!r}: {of[label]!r} is no label; expected answered, "
                "refused or partly_refused, XSTest's 1_full_compliance and so on, or 0 and 1 (a refusal): "
                f"name another with --label-column, or '{NO_LABELS}' to go without"
            )
        samples.append(
            Sample(prompt=_text(of[prompt]) if prompt else "", completion=_text(of[completion]), human=human)
        )
    if not samples:
        raise UserError(f"{table.source} has no rows; expected at least one completion")
    return samples


def _text(value: object) -> str:
    return "" if value is None else str(value)
