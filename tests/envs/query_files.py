"""Files of queries for tests: written, read back, refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from envs.queries import Query, QueryFileError, load_queries


def written(folder: Path, name: str, content: str | bytes) -> Path:
    """A file of that name; text is written as UTF-8."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def parquet(path: Path, columns: dict[str, object]) -> Path:
    """A Parquet file of row groups of two."""
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def texts(queries: Sequence[Query]) -> list[str]:
    """The prompts alone."""
    return [query.text for query in queries]


def error_of(path: str | Path, **options: object) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(QueryFileError) as caught:
        load_queries(path, **options)  # type: ignore[arg-type]  # each test names the options it tries
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message
