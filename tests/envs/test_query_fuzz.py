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

from envs.queries import Query, load_queries, queries_sha256, split_queries
from envs.query_files import QueryFileError

Records = list[dict[str, Any]]

NAMES = st.sampled_from(["prompt", "goal", "Behavior", "ContextString", "label"]) | st.text(
    max_size=4
)
PROMPTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
TEXTS = PROMPTS | st.sampled_from(["", " ", '"', "\ufeff", "\0", "one\ntwo"]) | st.text(max_size=9)
KEYS = NAMES | st.sampled_from(
    [*("role", "content", "from", "value", "text", "turns", "train", "groups", "chats")]
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    VALUES | st.sampled_from(["user", "assistant", "system"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
PARQUET_TYPES = st.sampled_from(
    [
        *(pa.string(), pa.large_string(), pa.binary(), pa.int64(), pa.timestamp("ns")),
        *(pa.list_(pa.string()), pa.dictionary(pa.int32(), pa.string())),
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
    columns = {name: pa.array([row[name] for row in records]) for name in (records or [{}])[0]}
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
    "utf-16.tsv": partial(delimited, delimiter="\t", encoding="utf-16"),
    "set.jsonl": lambda records: "\n".join(map(json.dumps, records)).encode(),
    "set.json": lambda records: json.dumps(records).encode(),
    "set.txt": lambda records: "\n".join(str(v) for r in records for v in r.values()).encode(),
}
INSERTED = [
    *(b"\0", b'"', b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xe9", b"\r", b"\n", b","),
    *(b"\\ud800", b"[" * 2000, b"{", b"x" * 140_000, b"9" * 5000, b"PK\x03\x04", b"PAR1", b"\t"),
]


@st.composite
def records(draw: st.DrawFn) -> Records:
    """Rows as a good file holds them, or under any names with any texts."""
    if draw(st.booleans()):
        names = draw(st.permutations(["prompt", "label", "goal"]))
        rows = st.fixed_dictionaries(dict.fromkeys(names, PROMPTS.filter(str.strip)))
        return draw(st.lists(rows, min_size=1, max_size=5))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return draw(st.lists(st.fixed_dictionaries(dict.fromkeys(names, TEXTS)), max_size=5))


@st.composite
def changed(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with up to three pieces cut out, doubled, or replaced."""
    for _ in range(draw(st.integers(0, 3))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        pieces = st.sampled_from([b"", content[start:end] * 2, *INSERTED]) | st.binary(max_size=4)
        content = content[:start] + draw(pieces) + content[end:]
    return content


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A name and a content: a good file, mostly changed; JSON of any values; or any bytes."""
    name = draw(st.sampled_from([*WRITERS, "set.parquet", "values.json", "values.jsonl"]))
    if draw(st.integers(0, 9)) == 0:
        return name, draw(st.binary(max_size=60))
    if name == "values.json":
        return name, draw(changed(json.dumps(draw(JSON)).encode()))
    if name == "values.jsonl":
        lines = draw(st.lists(st.dictionaries(KEYS, JSON, max_size=3) | JSON, max_size=4))
        return name, draw(changed("\n".join(map(json.dumps, lines)).encode()))
    if name == "set.parquet":
        return name, draw(changed(parquet(draw(records()), draw(PARQUET_TYPES))))
    return name, draw(changed(WRITERS[name](draw(records()))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


@given(file=files(), group=st.sampled_from([None, None, "label"]))
def test_any_file_is_read_clean_or_refused_in_one_line_that_names_it(
    folder: Path, file: tuple[str, bytes], group: str | None
) -> None:
    name, content = file
    path = folder / name
    path.write_bytes(content)
    refusal = ""
    try:
        check(load_queries(path, group_column=group))
    except QueryFileError as error:
        refusal = str(error)
    event(f"{path.suffix}: {'refused' if refusal else 'read'}")
    assert len(refusal.splitlines()) <= 1
    assert not refusal or str(path) in refusal


def check(queries: tuple[Query, ...]) -> None:
    assert len({query.text for query in queries}) == len(queries) > 0
    for query in queries:
        before = (query.system or "s", *(user for user, _ in query.turns))
        for text in (query.text, query.group, *before):
            assert text.encode().strip()
            assert "\0" not in text
    assert split_queries(queries, held_out=0) == (queries, ())
    assert len(queries_sha256(queries)) == 64
