"""Prompts, groups and references are picked from a file's columns, and rows by filters."""

from __future__ import annotations

import csv
import logging
import re
from collections import Counter
from pathlib import Path

import pytest

from envs.queries import BUNDLED_QUERIES, Query, load_queries
from tests.envs.query_files import error_of, texts, written

XSTEST = Path(__file__).parents[2] / "../shared/data/xstest_prompts.csv"


def test_the_order_of_columns_in_the_file_does_not_decide_which_holds_the_prompt(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "Behavior,Goal\ntitle,request\n")
    assert texts(load_queries(path)) == ["request"]


def test_a_named_prompt_column_goes_before_a_known_one_whatever_its_case(tmp_path: Path) -> None:
    path = written(tmp_path, "set.csv", "prompt,Text\nnot this,this\n")
    assert texts(load_queries(path, prompt_column="text")) == ["this"]


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
    assert message.startswith(f"{path} has no row left with --where 'label=safe'; 'label' has 'kind 0', ")
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
