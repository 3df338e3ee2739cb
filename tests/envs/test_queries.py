"""Files of queries: what is read from each format, what is refused in one line, how they split."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envs.labelled_files import read_samples
from envs.queries import (
    Chat,
    Query,
    chats_of,
    load_queries,
    queries_sha256,
)
from envs.query_files import QueryFileError
from envs.query_sets import (
    QueryConfig,
    QuerySplitError,
    keep_queries,
    load_query_set,
    recorded_queries,
    split_queries,
)
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
    ("set.csv", 'kind,prompt\na,"one, two"\n\nb,"three\nfour"\n', TWO),
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


@given(prompts=st.lists(st.text(st.characters(exclude_categories=["C"])), min_size=1))
def test_prompts_come_back_from_any_format(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str]
) -> None:
    assume(all(map(str.strip, prompts)) and "prompt" not in map(str.strip, prompts))
    folder = tmp_path_factory.mktemp("sets", numbered=True)
    with (folder / "set.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["prompt"], *([prompt] for prompt in prompts)])
    lines = (json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts)
    (folder / "set.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "set.json").write_text(json.dumps(prompts))
    written(folder, "set.parquet", parquet({"prompt": prompts}))
    for path in sorted(folder.iterdir()):
        assert texts(path) == list(dict.fromkeys(prompt.strip() for prompt in prompts))


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
    ("set.csv", "prompt,label\n\n", EMPTY),
    ("set.txt", "\ufeff\n  \n", EMPTY),
    ("set.json", "[]", EMPTY),
    ("set.csv", "id,prompt\n1,a\n2,  \n", "{path}, row 3: 'prompt' is blank; "),
    ("set.csv", "id,prompt\n1,\u200b \u200b\n", "{path}, row 2: 'prompt' is blank; "),
    ("set.csv", "id,prompt\n1,a\n2\n", "{path}, row 3: 1 cells under 2 columns; "),
    ("set.csv", 'prompt\n"never closed\n', "{path}, row 2: unexpected end of data; close"),
    ("set.csv", "prompt,id,prompt\na,1,b\n", "{path} has several columns named 'prompt'"),
    ("set.csv", "id;prompt\n1;a\n", "{path} has columns 'id;prompt'; expected one of 'prompt', "),
    ("set.csv", "prompt\n" + "a" * 200_000, "{path}, row 2: field larger than field limit"),
    ("set.csv", "turns\n\"['a']\"\n", "{path}, row 2: 'turns': it is not JSON: "),
    ("set.txt", "one\n" + "a" * (LONGEST + 1), "{path}, row 2: 'prompt' has 100001 characters; "),
    ("set.jsonl", '{"query": "a"}\n\n{"query": \n', "{path}, row 3: it is not JSON: "),
    ("set.jsonl", '{"a":' * 100_000, "{path}, row 1: it is nested too deep; "),
    ("set.jsonl", '[{"query": "a"}]\n', "{path}, row 1: a JSON list; expected an object"),
    ("set.jsonl", '{"query": "a"}\n{"text": "b"}\n', "{path}, row 2: 'query' is blank; "),
    ("set.jsonl", '{"query": 5}\n', "{path}, row 1: 'query' holds '5' (int); expected text"),
    ("set.jsonl", '{"query": "\\ud83d"}\n', "{path}, row 1: 'query' holds a NUL or half of a "),
    ("set.json", '{"query": ["a"]}', "{path}: a JSON dict; expected a list of objects or of"),
    ("set.json", '{"train": ["a"], "groups": 5}', "{path} is a damaged queries.json of a run"),
    ("set.json", bad_chat(chat(("system", "s"))), "{path}, row 2: 'turns' is a chat without a "),
    ("set.json", TOOL, TURN + " 2 is of 'tool'; expected one of system, developer, user, "),
    ("set.json", REPLY, "{path}, row 2: 'turns': a turn of the assistant is blank or misplaced; "),
    ("set.json", bad_chat(chat(("user", [{"type": "x"}]))), TURN + ' 1 holds \'[{"type": "x"}]\''),
    ("set.json", bad_chat(["a" * (LONGEST + 1)]), TURN + " 1 has 100001 characters; shorten it"),
    ("set.xlsx", "prompt\na\n", "{path} ends in '.xlsx'; expected one of '.csv', "),
    ("a\nb.csv", "prompt\na\n", "{path!r} is not a name of one line; rename it"),
    ("set.csv", "prompt\nfine\ncaf\u00e9\n".encode("cp1252"), "{path}, line 3: " + NO_TEXT),
    ("set.csv", "prompt\nfine\n".encode("utf-16") + b"a", "{path}, line 3: " + NO_TEXT),
    ("set.csv", b"prompt\na\0b\n", "{path}, line 2: a NUL character; save the file as UTF-8"),
    ("set.csv", gzip.compress(b"prompt\na\n", mtime=0), "{path}, line 1: " + NO_TEXT),
    ("set.parquet", b"PAR1\x15\x04 PAR1", "{path} cannot be read as Parquet ("),
    ("set.parquet", parquet({"prompt": [b"a"]}), "{path}, row 1: 'prompt' holds \"b'a'\" (byt"),
    ("set.parquet", parquet({"prompt": pa.array([], pa.string())}), EMPTY),
    ("set.parquet", parquet(TWICE), "{path} has several columns named 'prompt': rename them"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED)
def test_a_file_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = written(tmp_path, name, content)
    start = message.replace("{path}", str(path)).replace("{path!r}", repr(str(path)))
    assert error_of(path).startswith(start)


HAS = "{path} has columns 'text', 'label'; "
NOTHING = "{path} has no row left with --where 'label=safe'; 'label' has 'kind 0', .*'kind 9', ..."
EXPECTED = (
    "'prompt', 'query', 'question', 'forbidden_prompt', 'prompt_text', 'goal', 'behavior', "
    "'turns', 'messages', 'conversations': name it with --prompt-column"
)
NAMED: list[tuple[dict[str, Any], str]] = [
    ({"prompt_column": None}, f"{HAS}expected one of {EXPECTED}"),
    ({"group_column": "txt"}, f"{HAS}--group-column names 'txt'"),
    ({"where": ["x"]}, "--where is 'x'; expected column=value"),
    ({"where": ["label=safe"]}, NOTHING),
]


@pytest.mark.parametrize(("options", "message"), NAMED)
def test_a_column_or_filter_that_is_not_there_names_the_flag_and_what_there_is(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    rows = "".join(f"q{i},kind {i}\n" for i in range(12))
    path = written(tmp_path, "set.csv", f"text,label\n{rows}")
    error = error_of(path, **{"prompt_column": "text", **options})
    assert re.fullmatch(message.format(path=path), error)


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    path = written(tmp_path, "queries.csv", "prompt\na\n")
    missing = tmp_path / "querys.csv"
    assert error_of(missing) == f"there is no regular file '{missing}'; did you mean 'queries.csv'?"
    pipe = tmp_path / "set.csv"
    os.mkfifo(pipe)
    for other in (tmp_path, pipe, tmp_path / "a\0b.csv"):
        assert error_of(other) == f"there is no regular file {str(other)!r}"
    assert "File name too long" in error_of(tmp_path / ("a" * 300 + ".csv"))
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    assert texts(link) == ["a"]


GROUPS = st.lists(st.text(max_size=5), min_size=1, max_size=40)


def queries_of(groups: Sequence[str]) -> list[Query]:
    return [Query(text=f"{group} {row}", group=group, row=row) for row, group in enumerate(groups)]


def is_held_out(query: Query, held_out: float, split_seed: int) -> bool:
    """The side of a query that is alone in its file."""
    try:
        split_queries([query], held_out=held_out, split_seed=split_seed)
    except QuerySplitError as error:
        return "left for training" in str(error)
    return False


@given(groups=GROUPS, shares=st.tuples(st.floats(0, 1), st.floats(0, 1)), split_seed=st.integers())
def test_other_queries_never_move_a_query_and_a_larger_share_only_adds(
    groups: list[str], shares: tuple[float, float], split_seed: int
) -> None:
    queries, (small, large) = queries_of(groups), sorted(shares)
    held = [query for query in queries if is_held_out(query, small, split_seed)]
    train = [query for query in queries if query not in held]
    assert not {query.group for query in held} & {query.group for query in train}
    assert all(is_held_out(query, large, split_seed) for query in held)
    try:
        sides = split_queries(queries, held_out=small, split_seed=split_seed)
    except QuerySplitError:
        assert not train or not held
    else:
        assert sides == (tuple(train), tuple(held))


def test_the_split_is_the_same_on_every_machine() -> None:
    train, held_out = split_queries(queries_of([str(i) for i in range(12)]), split_seed=3)
    assert [query.group for query in held_out] == ["0", "1", "7", "9", "11"]
    assert len(train) + len(held_out) == 12
    assert queries_sha256(train).startswith("7ecdcb3b422dcc6b")
    bundled = load_queries(None)
    held = {seed: split_queries(bundled, split_seed=seed)[1] for seed in range(5)}
    assert all(0.25 < len(each) / len(bundled) < 0.35 for each in held.values())
    assert len(set(held.values())) == 5


UNSPLIT = [
    ("ab", float("nan"), "expected a share between 0 and 1"),
    ("aa", 1, "no query is left for training .* bring more queries"),
    ("aa", 1e-9, "no query is held out .* 1 groups.* bring more queries"),
    ("", 0, "no query is left for training"),
]


@pytest.mark.parametrize(("groups", "held_out", "message"), UNSPLIT)
def test_a_side_without_queries_is_refused(groups: str, held_out: float, message: str) -> None:
    with pytest.raises(QuerySplitError, match=message):
        split_queries(queries_of(groups), held_out=held_out)


def test_the_hash_follows_content_order_and_chats_but_not_rows() -> None:
    queries = queries_of("abc")
    changes: list[Any] = [{"system": "s"}, {"turns": (("a", ""),)}, {"answers": ("7",)}]
    other = [*(replace(queries[0], **change) for change in changes), queries[1]]
    assert queries_sha256(replace(query, row=9) for query in queries) == queries_sha256(queries)
    different = [queries[::-1], queries[1:], *([each, *queries[1:]] for each in other)]
    assert len({queries_sha256(each) for each in (queries, *different)}) == 7


def test_a_column_without_a_name_is_an_index_and_holds_neither_answers_nor_prompts(
    tmp_path: Path,
) -> None:
    (query,) = load_queries(written(tmp_path, "set.csv", ",query\n7,a\n"))
    assert query.answers == ()
    (sample,) = read_samples(written(tmp_path, "replies.csv", ",completion\n7,Sure.\n"))
    assert sample.prompt == ""


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("set.csv", "query,answer\na, 7 \nb,\n", {}, [("7",), ()]),
        ("set.csv", "query,Right\na,7\nb,8\n", {"answer_column": "right"}, [("7",), ("8",)]),
        (
            "set.json",
            '[{"query": "a", "answers": ["x", "y", "x"]}, {"query": "b", "answers": 1.5}]',
            {},
            [("x", "y"), ("1.5",)],
        ),
        ("set.jsonl", '{"query": "a", "answers": {"text": ["x"]}}', {}, [("x",)]),  # SQuAD
        ("set.parquet", parquet({"query": ["a"], "answers": [["x", "y"]]}), {}, [("x", "y")]),
    ],
)
def test_right_answers_are_read_where_there_are_any(
    tmp_path: Path,
    name: str,
    content: str | bytes,
    options: dict[str, Any],
    expected: list[tuple[str, ...]],
) -> None:
    path = written(tmp_path, name, content)
    assert [query.answers for query in load_queries(path, **options)] == expected


@pytest.mark.parametrize(
    ("content", "reward", "says"),
    [
        ("query\na\nb\n", "number", "set.csv has no right answers, which --reward number"),
        ("query,answer\na,7\nb,x\nc,\n", "number", r"row 3: the answer 'x'.*\(2 of 3 rows"),
    ],
)
def test_a_reward_that_compares_answers_needs_one_in_each_row(
    tmp_path: Path, content: str, reward: str, says: str
) -> None:
    config = QueryConfig(queries=str(written(tmp_path, "set.csv", content)), held_out=0)
    with pytest.raises(UserError, match=says) as caught:
        load_query_set(config, reward)
    assert "\n" not in str(caught.value)
    assert load_query_set(config).train
    with pytest.raises(UserError, match="the bundled set has no right answers"):
        load_query_set(QueryConfig(), reward)


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
