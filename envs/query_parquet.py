"""Parquet files of queries, read column by column and batch by batch; pyarrow is imported when one is met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envs.query_tables import QueryFileError, Row, Table, bare, shown, table_of

PARQUET_MARK = b"PAR1"
"""What a Parquet file begins and ends with."""

BATCH_ROWS = 8192
"""Rows decoded at a time."""


def read_parquet(path: Path) -> Table:
    """A .parquet file; a row is counted from 1; of nested columns the outermost are the columns."""
    with _opened(path) as file:
        names = file.schema_arrow.names

    def rows(wanted: Sequence[str]) -> Iterator[Row]:
        return _rows(path, [next(name for name in names if bare(name) == column) for column in wanted])

    return table_of(shown(path), names, rows)


def _rows(path: Path, names: Sequence[str]) -> Iterator[Row]:
    row = 0
    with _opened(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=[*dict.fromkeys(names)], use_threads=False):
            values = [_values(batch.column(name)) for name in names]
            for row, cells in enumerate(zip(*values, strict=True), row + 1):  # noqa: B020  # counts on from batch to batch
                yield row, cells


def _values(column: Any) -> list[object]:  # noqa: ANN401  # pyarrow has no types
    """A column of one batch as Python values; in text, bytes that are not UTF-8 become lone surrogates."""
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError:
        content = column.cast("binary").to_pylist()
        values = [text if text is None else text.decode(errors="surrogateescape") for text in content]
    return values


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file; whatever pyarrow says of it while it is open is said in one line."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise QueryFileError(f"{shown(path)} cannot be read as Parquet ({said}); write it anew") from error
