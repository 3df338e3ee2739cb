"""Files of queries: what is read from each format, what is refused in one line, how they split."""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from envs.preflight import check_lengths
from envs.queries import Chat, Query, chats_of, load_queries, queries_sha256
from envs.query_files import QueryFileError
from envs.query_sets import (
    QueryConfig,
    QuerySplitError,
    keep_queries,
    load_query_set,
    recorded_queries,
    split_queries,
)
from ollama_utils.encoders import HashingEncoder
from ollama_utils.errors import EncodingError, PromptTooLongError
from records.errors import UserError

LONGEST = 100_000


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def parquet(columns: Any) -> bytes:
    """A Parquet file of row groups of two."""
    file = io.BytesIO()
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, file, row_group_size=2)
    return file.getvalue()


def texts(path: Path, **options: Any) -> list[str]:
    return [query.text for query in load_queries(path, **options)]


def error_of(path: Path, **options: Any) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(QueryFileError) as caught:
        load_queries(path, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


TWO = ["one, two", "three\nfour"]
READ: list[tuple[str, str, list[str]]] = [
    ("set.csv", 'kind,prompt\ra,"one, two"\r\n , \nb,"three\nfour"\r', TWO),
    ("set.TSV", 'kind\tprompt\na\tone, two\n\nb\t"three\nfour"\n', TWO),
    ("set.jsonl", '{"k": 1, "prompt": "one, two"}\n\n{"prompt": "three\\nfour", "k": null}\n', TWO),
    ("set.ndjson", '{"query": "one, two"}\r\n\r\n{"query": "three\\nfour", "n": [1]}', TWO),
    ("set.json", '[{"query": "one, two", "n": 1},\n {"query": "three\\nfour"}]', TWO),
    ("set.json", '["one, two", "three\\nfour"]', TWO),
    ("set.csv", "Index,Goal,Target,Behavior,Category\n1,a,b,c,d\n", ["a"]),  # JailbreakBench
    ("set.tsv", "release_prompt_id\tprompt_text\thazard\n1\ta\tb\n", ["a"]),  # AILuminate
    ("set.csv", "QUERY,notes\na,b\n", ["a"]),
    # A context of HarmBench goes before its behaviour.
    ("set.csv", "Behavior,ContextString\na,A tale\nb,\n", ["A tale\n\n---\n\na", "b"]),
    ("set.csv", "prompt,ContextString\na,A tale\n", ["a"]),
]


@pytest.mark.parametrize(("name", "content", "expected"), READ)
def test_the_prompts_of_a_file_are_found_in_every_encoding(
    tmp_path: Path, name: str, content: str, expected: list[str]
) -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert texts(written(tmp_path, name, content.encode(encoding))) == expected


def test_rows_are_counted_as_people_count_them(tmp_path: Path) -> None:
    lines = written(tmp_path, "set.txt", " one \r\n\r\n   \ntwo\u2028parts\rPAR1, a gene")
    assert [(q.text, q.row) for q in load_queries(lines)] == [
        *(("one", 1), ("two\u2028parts", 4), ("PAR1, a gene", 5)),
    ]
    table = written(tmp_path, "set.csv", 'prompt\n"one\ntwo"\n\nthree\n')
    assert [query.row for query in load_queries(table)] == [2, 4]


def test_columns_and_rows_are_chosen_and_a_text_is_kept_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = "prompt,Text,pair,category\nno,a,1,x\nno,b,,\nno,a ,2,\nno,c,1,y\n,,3,z\n"
    path = written(tmp_path, "set.csv", content)
    assert load_queries(path, prompt_column="text", group_column="Pair", where=["PROMPT=no"]) == (
        Query(text="a", group="1", category="x", row=2),
        Query(text="b", group="b", row=3),
        Query(text="c", group="1", category="y", row=5),
    )
    assert caplog.messages == [f"{path}: dropped 1 of 4 queries as duplicates"]
    assert texts(path, prompt_column="Text", where=["pair=1", "category=y"]) == ["c"]


def test_parquet_may_hold_anything_beside_the_prompts(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    columns = {
        "prompt": pa.array(["one", "two", "one", "three"]).cast(kind),
        "pair": pa.array([1, 1, None, 2]),
        "facts": [{"a": [1]}, None, None, {"a": []}],
        "when": pa.array([1, 2, 3, 4], pa.timestamp("ns")),
    }
    path = written(tmp_path, "set.parquet", parquet(columns))
    queries = [(q.text, q.group, q.row) for q in load_queries(path, group_column="pair")]
    assert queries == [("one", "1", 1), ("two", "1", 2), ("three", "2", 4)]
    assert texts(path, where=['facts={"a": [1]}']) == ["one"]


def chat(*turns: tuple[str, object], names: str = "role content") -> list[dict[str, object]]:
    return [dict(zip(names.split(), turn, strict=True)) for turn in turns]


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
SHARED = chat(("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d"), names="from value")
CHATS: dict[str, tuple[str, Any, str, Chat]] = {
    "MT-Bench": ("turns", ["a", " b "], "b", Chat(turns=(("a", ""),))),
    "SORRY-Bench": ("turns", ["a"], "a", Chat()),
    "OpenAI": ("messages", chat(("system", PARTS[:1]), ("user", PARTS)), "ab", Chat(system="a")),
    "ShareGPT": ("conversations", SHARED, "c", Chat(turns=(("a", "b"),))),
    "TRL": ("prompt", chat(("user", "a"), ("user", "b")), "b", Chat(turns=(("a", ""),))),
}


@pytest.mark.parametrize("form", CHATS)
def test_the_last_turn_of_the_user_is_the_query_and_what_is_before_it_is_kept(
    tmp_path: Path, form: str
) -> None:
    column, cell, text, before = CHATS[form]
    content = json.dumps([{"id": 1, column: cell}])
    files = [
        written(tmp_path, "set.json", content),
        written(tmp_path, "set.jsonl", content[1:-1]),
        written(tmp_path, "set.parquet", parquet({"id": [1], column: [cell]})),
    ]
    if column != "prompt":
        quoted = json.dumps(cell).replace('"', '""')
        files.append(written(tmp_path, "set.csv", f'{column}\n"{quoted}"\n'))
    for path in files:
        queries = load_queries(path)
        assert [query.text for query in queries] == [text]
        assert chats_of(queries) == ({} if before == Chat() else {text: before})


def bad_chat(cell: object) -> str:
    return json.dumps([{"turns": ["a"]}, {"turns": cell}])


EMPTY = "{path} is empty: expected at least one prompt"
NO_TEXT = "not UTF-8 text; save the file as UTF-8 (in a spreadsheet: CSV UTF-8)"
TURN = "{path}, row 2: 'turns', turn"
TOOL = bad_chat(chat(("user", "a"), ("tool", "b"), ("user", "c")))
REPLY = bad_chat(chat(("assistant", "a"), ("user", "b")))
TWICE = pa.table([pa.array(["a"])] * 2, names=["prompt", "prompt"])
REFUSED: list[tuple[str, str | bytes, str]] = [
    ("set.csv", "", EMPTY),
    ("set.csv", "id,prompt\n1,\u200b \u200b\n", "{path}, row 2: 'prompt' is blank; "),
    ("set.csv", "id,prompt\n1,a\n2\n", "{path}, row 3: 1 cells under 2 columns; "),
    ("set.csv", 'prompt\n"never closed\n', "{path}, row 2: unexpected end of data; close"),
    ("set.csv", "id;prompt\n1;a\n", "{path} has columns 'id;prompt'; expected one of 'prompt', "),
    ("set.txt", "one\n" + "a" * (LONGEST + 1), "{path}, row 2: 'prompt' has 100001 characters; "),
    ("set.jsonl", '{"query": "a"}\n\n{"query": \n', "{path}, row 3: it is not JSON: "),
    ("set.jsonl", '{"query": 5}\n', "{path}, row 1: 'query' holds '5' (int); expected text"),
    ("set.jsonl", '{"query": "\\ud83d"}\n', "{path}, row 1: 'query' holds a NUL or half of a "),
    ("set.json", '{"train": ["a"], "groups": 5}', "{path} is a damaged queries.json of a run"),
    ("set.json", TOOL, TURN + " 2 is of 'tool'; expected one of system, developer, user, "),
    ("set.json", REPLY, "{path}, row 2: 'turns': a turn of the assistant is blank or misplaced; "),
    ("set.xlsx", "prompt\na\n", "{path} ends in '.xlsx'; expected one of '.csv', "),
    ("set.csv", "prompt\nfine\ncaf\u00e9\n".encode("cp1252"), "{path}, line 3: " + NO_TEXT),
    ("set.csv", "prompt\na\n".encode("utf-16-le"), "{path}, line 1: a NUL character; save the "),
    ("set.parquet", b"PAR1\x15\x04 PAR1", "{path} cannot be read as Parquet ("),
    ("set.parquet", parquet({"prompt": [b"a"]}), "{path}, row 1: 'prompt' holds \"b'a'\" (byt"),
    ("set.parquet", parquet(TWICE), "{path} has several columns named 'prompt': rename them"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED)
def test_a_file_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = written(tmp_path, name, content)
    start = message.replace("{path}", str(path)).replace("{path!r}", repr(str(path)))
    assert error_of(path).startswith(start)


def test_a_column_or_filter_that_is_not_there_names_the_flag_and_what_there_is(
    tmp_path: Path,
) -> None:
    rows = "".join(f"q{i},kind {i}\n" for i in range(12))
    path = written(tmp_path, "set.csv", f"text,label\n{rows}")
    named: list[tuple[dict[str, Any], str]] = [
        ({"prompt_column": None}, "has columns 'text', 'label'; expected one of 'prompt', "),
        ({"group_column": "txt"}, "has columns 'text', 'label'; --group-column names 'txt'"),
        ({"where": ["x"]}, "--where is 'x'; expected column=value"),
        ({"where": ["label=safe"]}, "'label=safe'; 'label' has 'kind 0', .*'kind 9', ..."),
    ]
    for options, message in named:
        assert re.search(message, error_of(path, **{"prompt_column": "text", **options}))


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    written(tmp_path, "queries.csv", "prompt\na\n")
    missing, pipe = tmp_path / "querys.csv", tmp_path / "set.csv"
    assert error_of(missing) == f"there is no regular file '{missing}'; did you mean 'queries.csv'?"
    os.mkfifo(pipe)
    for other in (tmp_path, pipe, tmp_path / "a\0b.csv"):
        assert error_of(other) == f"there is no regular file {str(other)!r}"
    assert "File name too long" in error_of(tmp_path / ("a" * 300 + ".csv"))


GROUPS = st.lists(st.text(max_size=5), min_size=1, max_size=40)


def queries_of(groups: Sequence[str]) -> list[Query]:
    return [Query(text=f"{group} {row}", group=group, row=row) for row, group in enumerate(groups)]


def held_out_of(queries: Sequence[Query], share: float, seed: int) -> set[Query]:
    """The queries that are held out, though one of the sides be empty."""
    try:
        return set(split_queries(queries, held_out=share, split_seed=seed)[1])
    except QuerySplitError as error:
        return set(queries) if "left for training" in str(error) else set()


@settings(max_examples=40)
@given(groups=GROUPS, shares=st.tuples(st.floats(0, 1), st.floats(0, 1)), seed=st.integers())
def test_other_queries_never_move_a_query_and_a_larger_share_only_adds(
    groups: list[str], shares: tuple[float, float], seed: int
) -> None:
    queries, (small, large) = queries_of(groups), sorted(shares)
    held = held_out_of(queries, small, seed)
    assert held == {query for query in queries if held_out_of([query], small, seed)}
    assert held <= held_out_of(queries, large, seed)
    assert not {query.group for query in held} & {q.group for q in queries if q not in held}


def test_the_split_is_the_same_on_every_machine() -> None:
    train, held_out = split_queries(queries_of([str(i) for i in range(12)]), split_seed=3)
    assert [query.group for query in held_out] == ["0", "1", "7", "9", "11"]
    assert len(train) + len(held_out) == 12
    assert queries_sha256(train).startswith("0d2f312059793625")
    bundled = load_queries(None)
    held = {seed: split_queries(bundled, split_seed=seed)[1] for seed in range(5)}
    assert all(0.25 < len(each) / len(bundled) < 0.35 for each in held.values())
    assert len(set(held.values())) == 5


def test_a_side_without_queries_is_refused() -> None:
    for groups, held_out, message in (
        ("ab", float("nan"), "expected a share between 0 and 1"),
        ("aa", 1, "no query is left for training .* bring more queries"),
        ("aa", 1e-9, "no query is held out .* 1 groups.* bring more queries"),
        ("", 0, "no query is left for training"),
    ):
        with pytest.raises(QuerySplitError, match=message):
            split_queries(queries_of(groups), held_out=held_out)


def test_the_hash_follows_content_order_and_chats_but_not_rows() -> None:
    first, *rest = queries_of("abc")
    assert queries_sha256([replace(first, row=9), *rest]) == queries_sha256([first, *rest])
    changes: list[Any] = [{"system": "s"}, {"turns": (("a", ""),)}, {"answers": ("7",)}]
    others = [[replace(first, **change), *rest] for change in changes]
    assert len({queries_sha256(each) for each in ([first, *rest], [*rest, first], *others)}) == 5


def test_right_answers_are_read_where_there_are_any(tmp_path: Path) -> None:
    lists = '[{"query": "a", "answers": ["x", "y", "x"]}, {"query": "b", "answers": 1.5}]'
    cases: list[tuple[str, str | bytes, str | None, list[tuple[str, ...]]]] = [
        ("set.csv", "query,answer\na, 7 \nb,\n", None, [("7",), ()]),
        ("set.csv", ",query\n7,a\n", None, [()]),  # a column without a name is an index
        ("set.csv", "query,Right\na,7\nb,8\n", "right", [("7",), ("8",)]),
        ("set.json", lists, None, [("x", "y"), ("1.5",)]),
        ("set.jsonl", '{"query": "a", "answers": {"text": ["x"]}}', None, [("x",)]),  # SQuAD
        ("set.parquet", parquet({"query": ["a"], "answers": [["x", "y"]]}), None, [("x", "y")]),
    ]
    for name, content, column, expected in cases:
        queries = load_queries(written(tmp_path, name, content), answer_column=column)
        assert [query.answers for query in queries] == expected


def test_a_reward_that_compares_answers_needs_one_in_each_row(tmp_path: Path) -> None:
    for content, says in (
        ("query\na\nb\n", "set.csv has no right answers, which --reward number"),
        ("query,answer\na,7\nb,x\nc,\n", r"row 3: the answer 'x'.*\(2 of 3 rows"),
    ):
        config = QueryConfig(queries=str(written(tmp_path, "set.csv", content)), held_out=0)
        with pytest.raises(UserError, match=says):
            load_query_set(config, "number")
        assert load_query_set(config).train
    with pytest.raises(UserError, match="the bundled set has no right answers"):
        load_query_set(QueryConfig(), "number")


def test_a_run_keeps_its_queries_and_they_come_back(tmp_path: Path) -> None:
    rows = [
        {"turns": [f"before {i}", f"q{i}"], "pair": i // 2, "category": "x", "answer": [i, "y"]}
        for i in range(40)
    ]
    rows += [{"turns": chat(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"))}]
    path = written(tmp_path, "set.json", json.dumps([*rows, {"turns": "plain"}]))
    config = QueryConfig(queries=str(path), group_column="pair")
    queries = keep_queries(load_query_set(config), config, 0.3)
    assert queries.kept
    record = written(tmp_path, "queries.json", json.dumps(queries.record()))
    found = recorded_queries(record)
    for side in ("train", "held_out", "kept"):
        assert queries_sha256(getattr(found, side)) == queries_sha256(getattr(queries, side))
    assert chats_of(found.train) == chats_of(queries.train)
    assert found.answers == queries.answers
    assert found.answers["q7"] == ("7", "y")
    every = (*found.train, *found.kept, *found.held_out)
    assert chats_of(every)["c"] == Chat(system="s", turns=(("a", "b"),))
    again = load_query_set(QueryConfig(queries=str(record)))
    assert {query.text for query in again.held_out} == {query.text for query in queries.held_out}


def test_the_bundled_set_is_large_varied_and_without_repeats() -> None:
    queries = load_queries(None)
    normal = {re.sub(r"\W+", " ", query.text.lower()).strip() for query in queries}
    assert len(queries) == len(normal) == 600
    counts = Counter(query.category for query in queries)
    assert (set(counts.values()), len(counts)) == ({60}, 10)


ROWS = [{"prompt": "How do I kill a process?", "label": "a"}, {"prompt": "Was it?", "label": "b"}]
TABLE = "prompt,label\n" + "".join(f'"{row["prompt"]}",{row["label"]}\n' for row in ROWS)
FILES = {
    "set.csv": TABLE.encode("utf-8-sig"),
    "set.tsv": TABLE.replace(",", "\t").encode("utf-16"),
    "set.jsonl": "\n".join(map(json.dumps, ROWS)).encode(),
    "set.json": json.dumps(ROWS).encode(),
    "set.txt": "\n".join(row["prompt"] for row in ROWS).encode(),
    "set.parquet": parquet(pa.Table.from_pylist(ROWS)),
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


@given(file=files(), group=st.sampled_from([None, "label"]))
def test_any_file_is_read_clean_or_refused_in_one_line_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[str, bytes], group: str | None
) -> None:
    path = written(tmp_path_factory.getbasetemp(), *file)
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


class ShortEncoder(HashingEncoder):
    """Takes texts of at most 400 characters."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = super().encode(texts)
        long = {
            k: PromptTooLongError("too long") for k, text in enumerate(texts) if len(text) > 400
        }
        if long:
            raise EncodingError(rows, long)
        return rows


def test_a_query_that_is_too_long_for_the_encoder_is_named_by_its_row(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", f"prompt\nhow?\n{'a' * 500}\nwhy?\n")
    config = QueryConfig(queries=str(path))
    with pytest.raises(UserError, match=r"set\.csv, row 3: too long for --encoder hashing"):
        check_lengths(ShortEncoder(8), texts(path), config)
    check_lengths(ShortEncoder(8), ["how?", "why?"], config)
