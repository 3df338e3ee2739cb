"""The category of each query of a run, as its queries.json has them: no other file is opened."""

from __future__ import annotations

from pathlib import Path

from records.json_lines import MOST_QUERIES_BYTES, read_json_object
from records.run_folder import QUERIES


def categories_of(run: Path) -> dict[str, str]:
    """The category of each query that has one, by its text: see `envs.mission.categories_of`.

    Raises:
        OSError: there is no such file.
        ValueError: it is damaged.
    """
    copy = read_json_object(run / QUERIES, MOST_QUERIES_BYTES)
    return {text: str(category) for text, category in copy["categories"].items()}
