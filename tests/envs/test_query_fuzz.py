"""Whatever bytes a file of queries holds, it is read clean or refused in one line that names it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from envs.queries import PROMPT_COLUMNS, Query, QueryFileError, load_queries, queries_sha256, split_queries

Records = list[dict[str, Any]]

NAMES = st.one_of(
    st.sampled_from([*PROMPT_COLUMNS, "Behavior", "ContextString", "label"]), st.text(max_size=4)
)
PROMPTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(str.strip),
    st.sampled_from(["=cmd()", 'say "hi"', "a,b", "one\ntwo", "é"]),
)
TEXTS = st.one_of(PROMPTS, st.sampled_from(["", " ", '"', "\ufeff", "\0"]), st.text(max_size=9))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
PARQUET_TYPES = st.sampled_from(
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.int64(),
        pa.timestamp("ns"),
        pa.list_(pa.string()),
        pa.dictionary(pa.int32(), pa.string()),
    ]
)


def delimited(records: Records, *, delimiter: str, encoding: str) -> bytes:
    file = io.StringIO(newline="")
    if records:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(records[0])
        writer.writerows(record.values() for record in records)
    return file.getvalue().encode(encoding)


def parquet(records: Records, kind: pa.DataType) -> bytes:
    columns = {name: pa.array([record[name] for record in records]) for name in (records or [{}])[0]}
    if columns:
        last = [*columns][-1]
        try:
            columns[last] = columns[last].cast(kind)
        except pa.ArrowException:
            columns[last] = pa.array([None] * len(records), kind)
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=2)
    return file.getvalue()


WRITERS: dict[str, Callable[[Records], bytes]] = {
    "utf-8.csv": partial(delimited, delimiter=",", encoding="utf-8"),
    "mark.csv": partial(delimited, delimiter=",", encoding="utf-8-sig"),
    "semicolons.csv": partial(delimited, delimiter=";", encoding="utf-8"),
    "utf-16.tsv": partial(delimited, delimiter="\t", encoding="utf-16"),
    "set.jsonl": lambda records: "\n".join(map(json.dumps, records)).encode(),
    "set.json": lambda records: json.dumps(records).encode(),
    "set.txt": lambda records: "\n".join(str(v) for r in records for v in r.values()).encode(),
    "swapped.jsonl": partial(delimited, delimiter=",", encoding="utf-8"),
}
INSERTED = [
    *(b"\0", b'"', b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xe9", b"\r", b"\n", b",", b"\t"),
    *(b"\\ud800", b"[" * 2000, b"{", b"x" * 140_000, b"9" * 5000, b"PK\x03\x04", b"PAR1", b"\x1f\x8b"),
]


@st.composite
def records(draw: st.DrawFn) -> Records:
    """Rows as a good file holds them, or under any names with any texts."""
    if draw(st.booleans()):
        names = draw(st.permutations(["prompt", "label", "goal"]))
        return draw(st.lists(st.fixed_dictionaries(dict.fromkeys(names, PROMPTS)), min_size=1, max_size=5))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return draw(st.lists(st.fixed_dictionaries(dict.fromkeys(names, TEXTS)), max_size=5))


def flipped(piece: bytes, bits: int) -> bytes:
    return bytes(byte ^ bits for byte in piece[:1]) + piece[1:]


@st.composite
def changed(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with up to three pieces flipped, cut out, doubled, or put between."""
    for _ in range(draw(st.integers(0, 3))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        piece = content[start:end]
        new = draw(
            st.one_of(
                st.just(b""),
                st.just(piece * 2),
                st.sampled_from(INSERTED),
                st.binary(max_size=4),
                st.integers(1, 255).map(partial(flipped, piece)),
            )
        )
        content = content[:start] + new + content[end:]
    return content


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A name and a content: a good file, mostly changed; JSON of any values; or any bytes."""
    kind = draw(st.sampled_from([*WRITERS, "set.parquet", "values.json", "values.jsonl", "bytes"]))
    if kind == "bytes":
        return draw(st.sampled_from([*WRITERS, "set.parquet"])), draw(st.binary(max_size=60))
    if kind == "values.json":
        return kind, draw(changed(json.dumps(draw(JSON)).encode()))
    if kind == "values.jsonl":
        lines = draw(st.lists(st.dictionaries(NAMES, JSON, max_size=3) | JSON, max_size=4))
        return kind, draw(changed("\n".join(map(json.dumps, lines)).encode()))
    if kind == "set.parquet":
        return kind, draw(changed(parquet(draw(records()), draw(PARQUET_TYPES))))
    return kind, draw(changed(WRITERS[kind](draw(records()))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


def is_text(text: str) -> bool:
    text.encode()
    return bool(text.strip()) and "\0" not in text


@given(
    file=files(),
    group=st.sampled_from([None, None, "label"]),
    reference=st.sampled_from([None, None, "goal"]),
)
def test_any_file_is_read_clean_or_refused_in_one_line_that_names_it(
    folder: Path, file: tuple[str, bytes], group: str | None, reference: str | None
) -> None:
    name, content = file
    path = folder / name
    path.write_bytes(content)
    try:
        queries = load_queries(path, group_column=group, reference_column=reference)
    except QueryFileError as error:
        refusal = str(error)
    else:
        event(f"{path.suffix}: read")
        check(queries)
        return
    event(f"{path.suffix}: refused")
    assert len(refusal.splitlines()) == 1
    assert str(path) in refusal


def check(queries: tuple[Query, ...]) -> None:
    assert queries
    assert all(is_text(query.text) and is_text(query.group) for query in queries)
    assert all(query.reference is None or is_text(query.reference) for query in queries)
    assert len({query.text for query in queries}) == len(queries)
    assert split_queries(queries, held_out=0) == (queries, ())
    assert len(queries_sha256(queries)) == 64
