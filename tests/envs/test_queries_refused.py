"""What is no file of queries, or no query, is refused in one line that says where, why and what to do."""

from __future__ import annotations

import csv
import gzip
import io
import os
import sys
import zipfile
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from envs.queries import LONGEST_TEXT, load_queries
from tests.envs.query_files import error_of, parquet, texts, written


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["a", None], "{path}, row 2: 'prompt' is blank; "),
        (["a", "b", "c\0"], "{path}, row 3: 'prompt' holds a NUL character; "),
        ([5], "{path}, row 1: 'prompt' holds '5' (int); expected text"),
        ([b"a"], "{path}, row 1: 'prompt' holds \"b'a'\" (bytes); expected text"),
        ([["a"]], "{path}, row 1: 'prompt' holds '[\"a\"]' (list); expected text"),
        ([{"text": "a"}], "{path}, row 1: 'prompt' holds '{{\"text\": \"a\"}}' (dict); expected text"),
        (pa.array([], pa.string()), "{path} is empty: expected at least one prompt"),
    ],
)
def test_what_is_no_prompt_in_parquet_is_refused_by_its_row(
    tmp_path: Path, prompts: object, message: str
) -> None:
    path = parquet(tmp_path / "set.parquet", {"prompt": prompts})
    assert error_of(path).startswith(message.format(path=path))


def test_bytes_that_are_no_text_in_parquet_are_refused_by_their_row(tmp_path: Path) -> None:
    buffers = pa.array([b"fine", b"caf\xe9", None]).buffers()
    path = parquet(tmp_path / "set.parquet", {"prompt": pa.Array.from_buffers(pa.string(), 3, buffers)})
    assert error_of(path).startswith(f"{path}, row 2: 'prompt' holds '\\udce9', which is not a character; ")


def test_a_damaged_parquet_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = parquet(tmp_path / "set.parquet", {"prompt": ["a"] * 50})
    content = path.read_bytes()
    written(tmp_path, "set.parquet", content[:-20] + content[-4:])
    assert error_of(path).startswith(f"{path} cannot be read as Parquet (")
    written(tmp_path, "set.parquet", content[:-20])
    assert error_of(path) == f"{path} is not a Parquet file, or not a whole one: expected 'PAR1' at both ends"


def test_parquet_without_pyarrow_is_refused_and_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "set.parquet", {"prompt": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    message = error_of(path)
    assert message.startswith(f"{path} needs pyarrow to be read (")
    assert message.endswith("): pip install 'mutagym[parquet]'")


def test_two_columns_of_one_name_in_parquet_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"]), path)
    assert error_of(path) == f"{path} has several columns named 'prompt': rename all but one"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.csv", "", "{path} is empty: expected at least one prompt"),
        ("set.csv", "prompt,label\n\n", "{path} is empty: expected at least one prompt"),
        ("set.txt", "\n  \n", "{path} is empty: expected at least one prompt"),
        ("set.txt", "\ufeff", "{path} is empty: expected at least one prompt"),
        ("set.jsonl", "", "{path} is empty: expected at least one prompt"),
        ("set.json", "[]", "{path} is empty: expected at least one prompt"),
        ("set.parquet", "", "{path} is empty: expected at least one prompt"),
        ("set.csv", "id,prompt\n1,a\n2,  \n", "{path}, row 3: 'prompt' is blank; "),
        ("set.csv", "id,prompt\n1,\u200b \u200b\n", "{path}, row 2: 'prompt' is blank; "),
        ("set.csv", "id,prompt\n1,a\n2\n", "{path}, row 3: 1 cells under 2 columns; "),
        ("set.csv", "id,prompt\n1,well, yes\n", "{path}, row 2: 3 cells under 2 columns; "),
        (
            "set.csv",
            "id,prompt\n1,a\n\ufeffid, prompt\n2,b\n",
            "{path}, row 3 is the header again; remove it",
        ),
        ("set.csv", 'prompt\n"never closed\n', "{path}, row 2: unexpected end of data; close each quote"),
        ("set.csv", 'prompt\na\n"b" c\n', "{path}, row 3: ',' expected after '\"'; close each quote"),
        ("set.csv", "prompt,id,prompt\na,1,b\n", "{path} has several columns named 'prompt'"),
        ("set.csv", "PROMPT,Prompt\na,b\n", "{path} has columns 'PROMPT', 'Prompt'; "),
        (
            "set.csv",
            "id;prompt\n1;a\n",
            "{path} has the one column 'id;prompt'; expected columns parted by ','",
        ),
        (
            "set.tsv",
            "id,prompt\n1,a\n",
            "{path} has the one column 'id,prompt'; expected columns parted by '\\t'",
        ),
        ("set.txt", "id\tPrompt\n1\ta\n", "{path}, line 1: 'id\\tPrompt' is a header; "),
        ("set.jsonl", '{"query": "a"}\n\n{"query": \n', "{path}, row 3: not JSON; expected an object"),
        ("set.jsonl", '{"a":' * 100_000, "{path}, row 1: not JSON; expected an object a line"),
        ("set.jsonl", '[\n {"query": "a"}\n]\n', "{path} is a JSON list: rename it to .json"),
        (
            "set.jsonl",
            '{"query": "a", "query": "b"}',
            "{path}, row 1: not JSON; expected an object a line (a key",
        ),
        ("set.jsonl", '{"query": "a"}\n{"text": "b"}\n', "{path}, row 2: 'query' is blank; "),
        ("set.jsonl", '{"query": ["a"]}\n', "{path}, row 1: 'query' holds '[\"a\"]' (list); expected text"),
        ("set.jsonl", '{"query": 5}\n', "{path}, row 1: 'query' holds '5' (int); expected text"),
        (
            "set.jsonl",
            '{"query": "\\ud83d"}\n',
            "{path}, row 1: 'query' holds '\\ud83d', which is not a character",
        ),
        ("set.jsonl", '{"query": "a\\u0000"}\n', "{path}, row 1: 'query' holds a NUL character; "),
        ("set.json", '{"query": ["a"]}', "{path}: a JSON dict; expected a list of objects or of prompts"),
        ("set.json", '["a", 5]', "{path}, row 2: a JSON int; expected a prompt or an object"),
        ("set.json", '["a"', "{path}: not JSON; expected a list of objects or of prompts ("),
        ("set.xlsx", "prompt\na\n", "{path} ends in '.xlsx'; expected one of '.csv', "),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = written(tmp_path, name, content)
    assert error_of(path).startswith(message.format(path=path) if "{path}" in message else message)


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        ("prompt\nfine\ncaf\u00e9\n".encode("cp1252"), 3, "not UTF-8 text"),
        ("prompt\nfine\ncaf\u00e9\n".encode("latin-1"), 3, "not UTF-8 text"),
        (b"prompt\nfine\n\xed\xa0\x80\n", 3, "not UTF-8 text"),
        (b"prompt\nfine\xc3", 2, "not UTF-8 text"),
        ("prompt\nfine\n".encode("utf-16") + b"a", 3, "not UTF-8 text"),
        ("prompt\nfine\n\ud800\n".encode("utf-16", "surrogatepass"), 3, "not UTF-8 text"),
        ("prompt\nfine\n".encode("utf-16-le"), 1, "a NUL character"),
        ("prompt\nfine\n".encode("utf-32"), 1, "a NUL character"),
        (b"prompt\na\0b\n", 2, "a NUL character"),
    ],
)
def test_bytes_that_are_no_text_are_refused_by_their_line(
    tmp_path: Path, content: bytes, line: int, what: str
) -> None:
    path = written(tmp_path, "set.csv", content)
    assert error_of(path) == (
        f"{path}, line {line}: {what}; save the file as UTF-8 (in a spreadsheet: CSV UTF-8)"
    )


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("set.csv"), content)  # of 1980: a name would bring the time of day
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (zipped(b"prompt\na\n"), "a ZIP archive (a workbook, .xlsx?): save it as CSV UTF-8, or unpack it"),
        (gzip.compress(b"prompt\na\n", mtime=0), "compressed (gzip): unpack it"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file (.xls?): save it as CSV UTF-8"),
        (b"PAR1 and so on PAR1", "a Parquet file: rename it to .parquet"),
    ],
    ids=["zip", "gzip", "office", "parquet"],
)
def test_a_binary_file_under_a_text_name_is_known_by_its_first_bytes(
    tmp_path: Path, content: bytes, what: str
) -> None:
    path = written(tmp_path, "set.csv", content)
    assert error_of(path) == f"{path} is {what}"


LENGTHS = [
    (f"set{suffix}", length)
    for suffix in (".csv", ".txt", ".jsonl", ".json", ".parquet")
    for length in (LONGEST_TEXT, LONGEST_TEXT + 1)
]


@pytest.mark.parametrize(
    ("name", "length"),
    [
        *LENGTHS,
        ("set.csv", 10_000_000),
        *(
            pytest.param(f"set{suffix}", 10_000_000, marks=pytest.mark.soak)
            for suffix in (".txt", ".jsonl", ".json", ".parquet")
        ),
    ],
)
def test_a_prompt_over_the_limit_is_refused_by_its_row_and_length(
    tmp_path: Path, name: str, length: int
) -> None:
    prompt = "a" * length
    contents = {
        ".csv": f"prompt\n{prompt}\n",
        ".txt": f"one\n{prompt}\n",
        ".jsonl": f'{{"prompt": "one"}}\n{{"prompt": "{prompt}"}}\n',
        ".json": f'["one", "{prompt}"]',
    }
    path = tmp_path / name
    if path.suffix == ".parquet":
        parquet(path, {"prompt": ["one", prompt]})
    else:
        path.write_text(contents[path.suffix])
    if length <= LONGEST_TEXT:
        assert texts(load_queries(path))[-1] == prompt
    elif path.suffix == ".csv" and length > csv.field_size_limit():
        assert error_of(path).startswith(f"{path}, row 2: field larger than field limit (131072); ")
    else:
        assert error_of(path) == (
            f"{path}, row 2: 'prompt' has {length} characters; shorten it to {LONGEST_TEXT}"
        )


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    with path.open("w") as file:
        file.write("one\n" + "a" * (2**24 + 1))
    assert error_of(path) == f"{path}, line 2: over 16777216 characters; shorten it"


def test_a_missing_file_names_its_nearest_neighbours(tmp_path: Path) -> None:
    written(tmp_path, "queries.csv", "prompt\na\n")
    missing = tmp_path / "querys.csv"
    assert error_of(missing) == f"there is no file {str(missing)!r}; did you mean 'queries.csv'?"
    lost = tmp_path / "nowhere" / "queries.csv"
    assert error_of(lost) == f"there is no file {str(lost)!r}"


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    assert error_of(tmp_path) == f"{str(tmp_path)!r} is a directory; expected a file of queries"
    pipe = tmp_path / "set.csv"
    os.mkfifo(pipe)
    for special in (pipe, Path("/dev/zero")):
        assert error_of(special) == (
            f"{str(special)!r} is a pipe, socket or device; expected a regular file of queries"
        )
    link = tmp_path / "link.csv"
    link.symlink_to(written(tmp_path, "real.csv", "prompt\na\n"))
    assert texts(load_queries(link)) == ["a"]


@pytest.mark.parametrize("name", ["a\nb.csv", "a" * 300 + ".csv", "a\0b.csv"])
def test_an_odd_name_is_refused_in_one_line_too(tmp_path: Path, name: str) -> None:
    if len(name) < 9 and "\0" not in name:
        written(tmp_path, name, "text\na\n")
    assert error_of(tmp_path / name)
