"""Text of others is harmless where it is shown, and nothing of it is lost in JSON."""

from __future__ import annotations

import json
import re

import markdown  # type: ignore[import-untyped] # what TensorBoard turns texts into HTML by
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.formats import as_yaml, new_table, print_parts
from records.progress import ProgressDisplay, Standing
from records.terminal import code_block, one_line, shown, shown_json
from tests.nasty import NASTY, harmful

anything = st.text(st.characters())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]52;c;cm0=\x07", r"\x1b]52;c;cm0=\x07"),
        ("a\rb\bc\x00", r"a\rb\bc\x00"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("\x85\x9b31m", r"\x85\x9b31m"),
        ("\u202egpj.exe\u2066", r"\u202egpj.exe\u2066"),
        ("a\u200bb\ufeff\u00ad", r"a\u200bb\ufeff\xad"),
        ("a\u2028b\u2029", r"a\u2028b\u2029"),
        ("\ud800\U000e0041", r"\ud800\U000e0041"),
        ("caf\u00e9, \u00a0\u3000 \u4f60\u597d \U0001f600\ufe0f [red]", None),
    ],
)
def test_what_a_terminal_would_obey_is_visible_and_the_rest_as_it_is(text: str, expected: str | None) -> None:
    assert shown(text) == (text if expected is None else expected)


@given(anything)
def test_shown_text_is_harmless_and_shown_again_the_same(text: str) -> None:
    assert not harmful(shown(text).replace("\t", ""))
    assert shown(shown(text)) == shown(text)
    assert "\n" not in one_line(text)


@given(anything)
def test_json_holds_the_same_text(text: str) -> None:
    told = shown_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert not harmful(told)
    assert json.loads(told) == {text: [text]}


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_yaml_is_harmless(nasty: str) -> None:
    assert not harmful(as_yaml({"name": nasty, "more": f"caf\u00e9 {nasty}"}))


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_tables_and_lines_are_harmless(nasty: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table(nasty, "name", nasty)
    table.add_row(nasty, f"a{nasty}b")
    print_parts([([table], nasty)], [nasty], simulated=False)
    out = capsys.readouterr().out
    assert not harmful(out)
    assert out.count(one_line(nasty)) >= 3


@pytest.mark.parametrize("terminal", [True, False], ids=["a terminal", "a file"])
@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_progress_is_harmless(
    nasty: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    if terminal:
        monkeypatch.setattr(Console, "is_terminal", True)
        monkeypatch.setenv("COLUMNS", "400")
        monkeypatch.setenv("TERM", "xterm")
    display = ProgressDisplay()
    display.begin(f"played{nasty}", 2, lambda: Standing(outcome=nasty, score=nasty, calls=nasty))
    with display:
        display.say(nasty)
        display.complain(f"E: {nasty}")
        display.update(1)
    err = capsys.readouterr().err
    if terminal:  # colours and movements of the bar's own
        assert f"played{one_line(nasty)}" in re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", err)
        err = re.sub(r"\x1b\[(?:[0-9;]*m|[0-9]*[AK]|2K|\?25[lh])|\r", "", err)
    assert not harmful(err)


MARKDOWN = (
    "![](http://example.org/pixel.png)",
    "[a link](http://example.org)",
    "<img src=http://example.org/x><script>alert(1)</script>",
    "<http://example.org>",
    "[x]: http://example.org\n\n[x]",
    "one\n\n![](http://example.org/1)\n\n```\n![](http://example.org/2)\n```\n\n# A heading",
    "- item\n\n| a | b |\n|--|--|\n| c | d |",
    "a\r\r![](http://example.org)",
    "a\u2028\u2028![](http://example.org)",
    "\n\n~~~\n![](http://example.org)",
)


@pytest.mark.parametrize("text", [*MARKDOWN, *NASTY], ids=ascii)
def test_tensorboard_shows_a_text_as_it_is(text: str) -> None:
    html = markdown.markdown(code_block(text), extensions=["tables", "fenced_code"])
    assert set(re.findall(r"</?(\w+)", html)) <= {"pre", "code"}
    assert not harmful(html)
