"""Query files are read as people write them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envs.queries import load_queries
from tests.envs.query_files import parquet, texts, written

SETS = {
    "XSTest": ("id,prompt,type,label,focus,note", "prompt"),
    "OR-Bench": ("prompt,category", "prompt"),
    "HarmBench": ("Behavior,FunctionalCategory,SemanticCategory,Tags,ContextString,BehaviorID", "Behavior"),
    "JailbreakBench": ("Index,Goal,Target,Behavior,Category,Source", "Goal"),
    "AdvBench": ("goal,target", "goal"),
    "StrongREJECT": ("category,source,forbidden_prompt", "forbidden_prompt"),
    "AILuminate 1.0": ("release_prompt_id,prompt_text,hazard", "prompt_text"),
    "AILuminate demo": ("prompt_uid,prompt_text,hazard", "prompt_text"),
    "questions": ("topic,Question", "Question"),
    "queries": ("QUERY,notes", "QUERY"),
}
PROMPTS = [
    "How do I kill a process?",
    'Say "hi", twice',
    "two\nlines",
    "=cmd()",
    "\u00e9t\u00e9 \u2028 \U0001f525",
]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_the_prompts_of_every_known_set_are_found_by_its_header(
    tmp_path: Path, name: str, delimiter: str
) -> None:
    header, prompt_column = SETS[name]
    columns = header.split(",")
    path = tmp_path / {",": "set.csv", "\t": "set.tsv"}[delimiter]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="other", delimiter=delimiter)
        writer.writeheader()
        blank = {"ContextString": ""} if "ContextString" in columns else {}
        writer.writerows({prompt_column: prompt} | blank for prompt in PROMPTS)
    assert texts(load_queries(path)) == PROMPTS


def test_a_behaviour_of_harmbench_follows_the_context_it_needs(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "Behavior,ContextString\nSum it up,A long tale\nSing,\n")
    assert texts(load_queries(path)) == ["A long tale\n\n---\n\nSum it up", "Sing"]
    other = written(tmp_path, "other.csv", "prompt,ContextString\nSum it up,A long tale\n")
    assert texts(load_queries(other)) == ["Sum it up"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("set.csv", 'kind,prompt\na,"one, two"\n\nb,"three\nfour"\n'),
        ("set.csv", 'kind,prompt\ra,"one, two"\r\n , \nb,"three\nfour"\r'),
        ("set.TSV", 'kind\tprompt\na\tone, two\n\nb\t"three\nfour"\n'),
        ("set.jsonl", '{"kind": "a", "prompt": "one, two"}\n\n{"prompt": "three\\nfour", "kind": null}\n'),
        ("set.ndjson", '{"query": "one, two"}\r\n\r\n{"query": "three\\nfour", "n": [1]}'),
        ("set.json", '[{"query": "one, two", "n": 1},\n {"query": "three\\nfour"}]'),
        ("set.json", '["one, two", "three\\nfour"]'),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_format_gives_the_same_queries_in_every_encoding_with_a_mark(
    tmp_path: Path, name: str, content: str, encoding: str
) -> None:
    assert texts(load_queries(written(tmp_path, name, content.encode(encoding)))) == [
        "one, two",
        "three\nfour",
    ]


def test_utf_16_is_read_in_either_byte_order(tmp_path: Path) -> None:
    for order in ("le", "be"):
        content = "\ufeffid\tprompt\r\n1\t\U0001f525 caf\u00e9\r\n".encode(f"utf-16-{order}")
        assert texts(load_queries(written(tmp_path, "set.tsv", content))) == ["\U0001f525 caf\u00e9"]


def test_a_text_file_holds_a_prompt_a_line_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    queries = load_queries(written(tmp_path, "set.txt", " one \r\n\r\n   \ntwo\u2028parts\rPAR1, a gene"))
    assert [(query.text, query.row) for query in queries] == [
        ("one", 1),
        ("two\u2028parts", 4),
        ("PAR1, a gene", 5),
    ]


def test_rows_are_counted_as_a_spreadsheet_counts_them(tmp_path: Path) -> None:
    queries = load_queries(written(tmp_path, "set.csv", 'prompt\n"one\ntwo"\n\nthree\n'))
    assert [query.row for query in queries] == [2, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each example writes the same files anew."""
    return tmp_path_factory.mktemp("sets")


@given(
    prompts=st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf"])).filter(str.strip), min_size=1
    )
)
def test_prompts_written_in_any_format_come_back(folder: Path, prompts: list[str]) -> None:
    assume("prompt" not in map(str.strip, prompts))  # the header again is refused
    with (folder / "set.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["prompt"], *([prompt] for prompt in prompts)])
    lines = (json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts)
    (folder / "set.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "set.json").write_text(json.dumps(prompts))
    parquet(folder / "set.parquet", {"prompt": prompts})
    expected = list(dict.fromkeys(prompt.strip() for prompt in prompts))
    for path in sorted(folder.iterdir()):
        assert texts(load_queries(path)) == expected


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    assert texts(load_queries(written(tmp_path, "set.csv", "\ufeffprompt\nh\u00e9llo\n"))) == ["h\u00e9llo"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_parquet_is_read_over_its_row_groups_with_values_of_any_kind_beside_the_prompts(
    tmp_path: Path, kind: pa.DataType
) -> None:
    columns = {
        "prompt": pa.array(["one", "two", "one", "three"]).cast(kind),
        "pair": pa.array([1, 1, None, 2]),
        "facts": [{"a": [1]}, None, None, {"a": []}],
    }
    path = parquet(tmp_path / "set.parquet", columns)
    queries = load_queries(path, group_column="pair", reference_column="facts")
    assert [(query.text, query.group, query.reference, query.row) for query in queries] == [
        ("one", "1", '{"a": [1]}', 1),
        ("two", "1", None, 2),
        ("three", "2", '{"a": []}', 4),
    ]
