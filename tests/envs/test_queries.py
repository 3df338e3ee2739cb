"""Query files are read as people write them, and an error says which row is wrong and what to do."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.queries import BUNDLED_QUERIES, Query, QueryFileError, load_queries

XSTEST = Path(__file__).parents[2] / "../shared/data/xstest_prompts.csv"

HEADERS = {
    "XSTest": ("id,prompt,type,label,focus,note", "prompt"),
    "OR-Bench": ("prompt,category", "prompt"),
    "HarmBench": (
        "Behavior,FunctionalCategory,SemanticCategory,Tags,ContextString,BehaviorID",
        "Behavior",
    ),
    "JailbreakBench": ("Index,Goal,Target,Behavior,Category,Source", "Goal"),
    "AdvBench": ("goal,target", "goal"),
    "StrongREJECT": ("category,source,forbidden_prompt", "forbidden_prompt"),
    "AILuminate 1.0": ("release_prompt_id,prompt_text,hazard", "prompt_text"),
    "AILuminate demo": ("prompt_uid,prompt_text,hazard", "prompt_text"),
    "questions": ("topic,Question", "Question"),
    "queries": ("QUERY,notes", "QUERY"),
}


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(queries: Sequence[Query]) -> list[str]:
    return [query.text for query in queries]


def error_of(path: str | Path, **options: object) -> str:
    with pytest.raises(QueryFileError) as caught:
        load_queries(path, **options)  # type: ignore[arg-type]  # each test names the options it tries
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", HEADERS)
def test_the_prompt_column_of_every_known_set_is_found(tmp_path: Path, name: str) -> None:
    header, prompt_column = HEADERS[name]
    row = ",".join("the prompt" if column == prompt_column else "other" for column in header.split(","))
    assert texts(load_queries(written(tmp_path, "set.csv", f"{header}\n{row}\n"))) == ["the prompt"]


def test_the_order_of_columns_in_the_file_does_not_decide_which_holds_the_prompt(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "Behavior,Goal\ntitle,request\n")
    assert texts(load_queries(path)) == ["request"]


def test_a_named_prompt_column_goes_before_a_known_one_whatever_its_case(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "prompt,Text\nnot this,this\n")
    assert texts(load_queries(path, prompt_column="text")) == ["this"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("set.csv", 'kind,prompt\na,"one, two"\n\nb,"three\nfour"\n'),
        ("set.TSV", 'kind\tprompt\na\tone, two\n\nb\t"three\nfour"\n'),
        (
            "set.jsonl",
            '{"kind": "a", "prompt": "one, two"}\n\n{"prompt": "three\\nfour", "kind": null}\n',
        ),
        ("set.ndjson", '{"query": "one, two"}\r\n\r\n{"query": "three\\nfour", "n": [1]}'),
    ],
)
def test_every_format_gives_the_same_queries(tmp_path: Path, name: str, content: str) -> None:
    queries = load_queries(written(tmp_path, name, content))
    assert texts(queries) == ["one, two", "three\nfour"]


def test_a_text_file_holds_a_prompt_a_line_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    queries = load_queries(written(tmp_path, "set.txt", " one \r\n\r\n   \ntwo\u2028parts"))
    assert [(query.text, query.row) for query in queries] == [("one", 1), ("two\u2028parts", 4)]


def test_rows_are_counted_as_a_spreadsheet_counts_them(tmp_path: Path) -> None:
    queries = load_queries(written(tmp_path, "set.csv", 'prompt\n"one\ntwo"\n\nthree\n'))
    assert [query.row for query in queries] == [2, 4]


@given(
    prompts=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(str.strip), min_size=1)
)
def test_prompts_written_as_csv_or_json_lines_come_back(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("sets")
    with (folder / "set.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["prompt"], *([prompt] for prompt in prompts)])
    lines = (json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts)
    (folder / "set.jsonl").write_text("\n".join(lines), encoding="utf-8")
    expected = list(dict.fromkeys(prompt.strip() for prompt in prompts))
    assert texts(load_queries(folder / "set.csv")) == expected
    assert texts(load_queries(folder / "set.jsonl")) == expected


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    assert texts(load_queries(written(tmp_path, "set.csv", "\ufeffprompt\nhéllo\n"))) == ["héllo"]


def test_a_repeated_text_is_kept_once_and_said_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, "set.csv", "prompt,pair\nsame,1\nother,2\nsame ,3\nsame,4\n")
    with caplog.at_level(logging.WARNING):
        queries = load_queries(path, group_column="pair")
    assert [(query.text, query.group) for query in queries] == [("same", "1"), ("other", "2")]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: dropped 2 of 4 queries as duplicates"
    ]


def test_groups_and_references_come_from_their_columns_and_may_be_blank(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "goal,target,pair\none,Sure,7\ntwo,,\n")
    assert load_queries(path, group_column="Pair", reference_column="target") == (
        Query(text="one", group="7", reference="Sure", row=2),
        Query(text="two", group="two", reference=None, row=3),
    )


def test_rows_must_meet_every_filter(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "prompt,label,size\na,safe,1\nb,safe,2\nc,unsafe,2\n")
    assert texts(load_queries(path, where=["LABEL=safe", "size=2"])) == ["b"]


def test_a_filter_reads_json_values_as_json_writes_them(tmp_path: Path) -> None:
    path = written(tmp_path, "set.jsonl", '{"query": "a", "safe": true}\n{"query": "b", "safe": false}\n')
    assert texts(load_queries(path, where=["safe=true"])) == ["a"]


def test_a_row_filtered_out_may_have_no_prompt(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "prompt,label\na,safe\n,unsafe\n")
    assert texts(load_queries(path, where=["label=safe"])) == ["a"]


def test_an_unknown_filter_column_names_the_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "prompt,label\na,safe\n")
    assert error_of(path, where=["lable=safe"]) == (
        f"{path} has columns 'prompt', 'label'; --where names 'lable'"
    )


def test_a_filter_that_leaves_nothing_names_at_most_ten_values(tmp_path: Path) -> None:
    rows = "".join(f"q{i},kind {i}\n" for i in range(12))
    path = written(tmp_path, "set.csv", f"prompt,label\n{rows}")
    message = error_of(path, where=["label=safe"])
    assert message.startswith(f"{path} has no row left with --where label=safe; 'label' has 'kind 0', ")
    assert message.endswith("'kind 9' and 2 more")


def test_a_filter_without_an_equals_sign_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "prompt\na\n")
    assert error_of(path, where=["prompt"]) == "--where is 'prompt'; expected column=value"


def test_a_file_without_a_prompt_column_says_what_it_has_and_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path, "queries.csv", "text,tag\na,b\n")
    assert error_of(path) == (
        f"{path} has columns 'text', 'tag'; expected one of 'prompt', 'query', 'question', "
        "'forbidden_prompt', 'prompt_text', 'goal', 'behavior': name it with --prompt-column"
    )


@pytest.mark.parametrize("option", ["prompt_column", "group_column", "reference_column"])
def test_a_named_column_that_is_missing_is_an_error_that_names_the_flag(tmp_path: Path, option: str) -> None:
    path = written(tmp_path, "set.csv", "prompt\na\n")
    flag = f"--{option.replace('_', '-')}"
    assert error_of(path, **{option: "text"}) == f"{path} has columns 'prompt'; {flag} names 'text'"


def test_a_missing_file_names_its_nearest_neighbours(tmp_path: Path) -> None:
    written(tmp_path, "queries.csv", "prompt\na\n")
    missing = tmp_path / "querys.csv"
    assert error_of(missing) == f"there is no file {str(missing)!r}; did you mean 'queries.csv'?"
    lost = tmp_path / "nowhere" / "queries.csv"
    assert error_of(lost) == f"there is no file {str(lost)!r}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.csv", "", "{path} is empty: expected at least one prompt"),
        ("set.csv", "prompt,label\n\n", "{path} is empty: expected at least one prompt"),
        ("set.txt", "\n  \n", "{path} is empty: expected at least one prompt"),
        ("set.jsonl", "", "{path} is empty: expected at least one prompt"),
        ("set.csv", "id,prompt\n1,a\n2,  \n", "{path}, row 3: 'prompt' is blank; "),
        ("set.csv", "id,prompt\n1,a\n2\n", "{path}, row 3: 'prompt' is blank; "),
        (
            "set.csv",
            "id,prompt\n1,well, yes\n",
            "{path}, row 2: 3 cells under 2 columns; ",
        ),
        ("set.csv", 'prompt\n"never closed\n', "{path}, line 2: unexpected end of data"),
        (
            "set.csv",
            "prompt,id,prompt\na,1,b\n",
            "{path} has several columns named 'prompt'",
        ),
        ("set.csv", b"prompt\nfine\ncaf\xe9\n", "{path}, line 3: not UTF-8 text; "),
        ("set.txt", "one".encode("utf-16"), "{path}, line 1: not UTF-8 text; "),
        (
            "set.jsonl",
            '{"query": "a"}\n\n{"query": \n',
            "{path}, row 3: not JSON; expected an object",
        ),
        (
            "set.jsonl",
            '["a"]\n',
            "{path}, row 1: a JSON list; expected an object a line",
        ),
        (
            "set.jsonl",
            '{"query": "a"}\n{"text": "b"}\n',
            "{path}, row 2: 'query' is blank; ",
        ),
        (
            "set.jsonl",
            '{"query": ["a"]}\n',
            "{path}, row 1: 'query' holds a JSON list; expected text",
        ),
        ("set.xlsx", "prompt\na\n", "{path} ends in '.xlsx'; expected one of '.csv', "),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = written(tmp_path, name, content)
    assert error_of(path).startswith(message.format(path=path))


def test_a_directory_is_not_a_file_of_queries(tmp_path: Path) -> None:
    assert error_of(tmp_path) == f"{str(tmp_path)!r} is a directory; expected a file of queries"


def test_a_long_value_is_cut_short_in_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", f"prompt\n{'a' * 500}\n")
    assert len(error_of(path, where=["prompt=b"])) < len(str(path)) + 200


def test_the_bundled_set_is_large_varied_and_without_repeats(caplog: pytest.LogCaptureFixture) -> None:
    with BUNDLED_QUERIES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    queries = load_queries(None)
    normal = {re.sub(r"\W+", " ", query.text.lower()).strip() for query in queries}
    assert list(rows[0]) == ["id", "prompt", "category", "note"]
    assert len(rows) == len(queries) == len(normal) == 600
    assert set(Counter(row["category"] for row in rows).values()) == {60}
    assert len({row["category"] for row in rows}) == 10
    assert not caplog.records


def test_each_bundled_query_is_five_to_twenty_five_words_and_holds_the_words_of_its_note() -> None:
    with BUNDLED_QUERIES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert 5 <= len(row["prompt"].split()) <= 25
        assert all(
            re.search(rf"\b{re.escape(word)}\b", row["prompt"], re.IGNORECASE)
            for word in row["note"].split("; ")
        )


@pytest.mark.skipif(not XSTEST.is_file(), reason="XSTest's prompts are not beside the project")
def test_the_safe_prompts_of_xstest_can_be_picked_and_none_is_bundled() -> None:
    queries = load_queries(XSTEST, where=["label=safe"])
    assert len(queries) == 250

    def words(query: Query) -> str:
        return re.sub(r"[^\w\s]", "", query.text.lower())

    assert not {*map(words, load_queries(XSTEST))} & {*map(words, load_queries(None))}
