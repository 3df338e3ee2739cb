"""Files that anybody may have written: every defect is one line, and soon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from records.errors import UserError
from records.json_lines import JsonLines
from records.reading import MOST_BYTES, parse_json, parse_toml, read_json_object, read_text
from records.run_folder import RunFolder
from records.settings import read_toml

HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 10**6, "too deep"),
        ('{"a":' * 10**6, "too deep"),
        (f'{{"a": {HUGE}}}', "401 characters"),
        (f'{{"a": -{HUGE}}}', "402 characters"),
        ('{"a": 1e400}', "1e400"),
        ("[]", "list; expected an object"),
        ("1", "int; expected an object"),
        ("{", "Expecting"),
        ("\ud800", "surrogate"),
    ],
)
def test_json_that_is_no_object_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=says if "\ud800" not in text else "utf-8"):
        read_json_object(path)


def test_json_with_plain_numbers_is_read() -> None:
    assert parse_json('{"a": [18446744073709551615, -1, 0.1, 1e300]}') == {"a": [2**64 - 1, -1, 0.1, 1e300]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "[" * 10**5, "too deep"),
        ("a = " + "{a=" * 10**5, "too deep"),
        (".".join(["a"] * 10**6) + " = 1", "keys are nested"),
        (" . ".join(['"a,="'] * 10**6) + " = 1", "keys are nested"),
        ("[" + ".".join(["a"] * 10**6) + "]", "keys are nested"),
        ("x = {" + ".".join(["a"] * 10**6) + " = 1}", "keys are nested"),
        (f"a = {HUGE}", "digits"),
        ("a = " + "1_0" * 400, "digits"),
        ("a = = 1", "Invalid"),
    ],
)
def test_toml_that_is_out_of_bounds_is_refused_at_once(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_toml(text)


@pytest.mark.parametrize(
    "text",
    [
        'a = "1.2.3.4.5.6.7.8.9.10.11.12"',
        "a = '1.2.3.4.5.6.7.8.9.10.11.12' # 1.2.3.4.5.6.7.8.9.10.11.12",
        f'a = """{"a.b." * 20}\n"""',
        'a = "say \\"1.2.3.4.5.6.7.8.9.10.11.12\\" "',
        "a = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]",
        "a = 0.12345678901234567890123",
        f'a = "{HUGE}"',
    ],
)
def test_texts_and_lists_with_many_dots_and_digits_are_read(text: str) -> None:
    assert "a" in parse_toml(text)


def test_a_file_that_is_too_long_or_no_regular_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b" " * (MOST_BYTES + 1))
    with pytest.raises(ValueError, match="over 16777216 bytes"):
        read_text(tmp_path / "long")
    with pytest.raises(UserError, match="over 16777216 bytes"):
        read_toml(tmp_path / "long")
    with pytest.raises(ValueError, match="not a regular file"):
        read_text(Path("/dev/zero"))


def test_a_file_of_a_run_that_is_no_object_is_one_line_that_names_it(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.write_config({"a": 1})
        for content in ("[]", HUGE, "[" * 10**5, ""):
            (folder.path / "parts.json").write_text(content)
            with pytest.raises(UserError, match=r"parts\.json.*cannot be read") as caught:
                folder.read_json("parts.json")
            assert "\n" not in str(caught.value)


def test_a_line_that_is_poisoned_is_named(tmp_path: Path) -> None:
    def check(record: object) -> None:
        raise ValueError(f"{record} is none")

    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n')
    lines = JsonLines(path, done=1, row=1, check=check)
    lines.close()
    assert re.search(r"line 1 of .*lines\.jsonl.*is none", lines.flaw)


@pytest.mark.parametrize("line", ["[" * 10**6, f'{{"a": {HUGE}}}', "[]", "{" + " " * MOST_BYTES + "}"])
def test_a_line_that_cannot_be_read_is_as_one_that_is_torn(tmp_path: Path, line: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match="has 0 whole lines"):
        JsonLines(path, done=1, row=1)
