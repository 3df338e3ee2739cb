"""The category of each query, from the file that the run's queries are of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.queries import QueryFileError, load_queries
from records.trust import is_made_here

CATEGORY = "category"
"""The column that names it, where there is no --group-column."""


def categories_of(run: Path, config: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The category of each query, by its text; and a note where there is none.

    The file that a stranger's run names is not opened.
    """
    named = config.get("queries")
    file = named if isinstance(named, str) else None
    if file and not is_made_here(run):
        return {}, "Categories: left out, for the run was not made here: its file of queries is not opened."
    column = str(config.get("group-column") or CATEGORY)
    prompt = config.get("prompt-column")
    try:
        queries = load_queries(file, prompt_column=prompt and str(prompt), group_column=column)
    except QueryFileError as error:
        return {}, f"Categories: left out ({error})."
    return {query.text: query.group for query in queries if query.group != query.text}, ""
