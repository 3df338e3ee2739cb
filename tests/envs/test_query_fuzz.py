"""Whatever bytes a file of queries holds, it is read clean or refused in one line that names it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.queries import load_queries, queries_sha256
from envs.query_files import QueryFileError
from envs.query_sets import split_queries

ROWS = [{"prompt": "How do I kill a process?", "label": "a"}, {"prompt": "Was it?", "label": "b"}]
TABLE = "prompt,label\n" + "".join(f'"{row["prompt"]}",{row["label"]}\n' for row in ROWS)
PARQUET = io.BytesIO()
pq.write_table(pa.Table.from_pylist(ROWS), PARQUET)
FILES = {
    "set.csv": TABLE.encode("utf-8-sig"),
    "set.tsv": TABLE.replace(",", "\t").encode("utf-16"),
    "set.jsonl": "\n".join(map(json.dumps, ROWS)).encode(),
    "set.json": json.dumps(ROWS).encode(),
    "set.txt": "\n".join(row["prompt"] for row in ROWS).encode(),
    "set.parquet": PARQUET.getvalue(),
}
INSERTED = [
    *(b"\0", b'"', b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xe9", b"\r", b"\n", b","),
    *(b"\\ud800", b"[" * 2000, b"{", b"x" * 140_000, b"9" * 5000, b"PK\x03\x04", b"PAR1", b"\t"),
]
NAMES = ("prompt", "goal", "Behavior", "label", "role", "content", "from", "value", "text")
KEYS = st.sampled_from([*NAMES, "turns", "train", "groups", "chats"])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.just("user"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A name and a content: a good file or JSON of any values, some pieces of it replaced."""
    name = draw(st.sampled_from(sorted(FILES)))
    content = FILES[name]
    if name == "set.json" and draw(st.booleans()):
        content = json.dumps(draw(JSON)).encode()
    for _ in range(draw(st.integers(0, 3))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        pieces = st.sampled_from([b"", content[start:end] * 2, *INSERTED]) | st.binary(max_size=4)
        content = content[:start] + draw(pieces) + content[end:]
    return name, content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sets")


@given(file=files(), group=st.sampled_from([None, "label"]))
def test_any_file_is_read_clean_or_refused_in_one_line_that_names_it(
    folder: Path, file: tuple[str, bytes], group: str | None
) -> None:
    path = folder / file[0]
    path.write_bytes(file[1])
    try:
        queries = load_queries(path, group_column=group)
    except QueryFileError as error:
        refusal = str(error)
        assert len(refusal.splitlines()) == 1 and str(path) in refusal  # noqa: PT018
        return
    assert len({query.text for query in queries}) == len(queries) > 0
    for query in queries:
        for text in (query.text, query.group, *(user for user, _ in query.turns)):
            assert text.encode().strip()
            assert "\0" not in text
    assert split_queries(queries, held_out=0) == (queries, ())
    assert len(queries_sha256(queries)) == 64
