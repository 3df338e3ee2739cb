"""Text of others is harmless wherever it is printed."""

from __future__ import annotations

import re

import markdown  # type: ignore[import-untyped] # what TensorBoard turns texts into HTML by
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.output import print_tables
from records.progress import ProgressDisplay, Status
from records.terminal import code_block, one_line, printable
from report.table import Table
from tests.nasty import NASTY, harmful


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]52;c;cm0=\x07", r"\x1b]52;c;cm0=\x07"),
        ("a\rb\x00", r"a\rb\x00"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("\u202egpj.exe a\u200bb \U000e0041", r"\u202egpj.exe a\u200bb \U000e0041"),
        (
            "café, \u00a0\u3000 \u4f60\u597d \U0001f600 [red]",
            "café, \u00a0\u3000 \u4f60\u597d \U0001f600 [red]",
        ),
    ],
)
def test_what_a_terminal_would_obey_is_visible_and_the_rest_as_it_is(
    text: str, expected: str
) -> None:
    assert printable(text) == expected


@given(st.text(st.characters()))
def test_printable_text_is_harmless_and_stays_the_same(text: str) -> None:
    assert not harmful(printable(text).replace("\t", ""))
    assert printable(printable(text)) == printable(text)
    assert "\n" not in one_line(text)


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_tables_and_lines_are_harmless(nasty: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(caption=nasty, columns=("name", nasty), rows=[[nasty, f"a{nasty}b"]], says=nasty)
    print_tables([table], [nasty], simulated=False)
    out = capsys.readouterr().out
    assert not harmful(out)
    assert out.count(one_line(nasty)) >= 3


@pytest.mark.parametrize("terminal", [True, False], ids=["a terminal", "a file"])
@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_progress_is_harmless(
    nasty: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool,
) -> None:
    if terminal:
        monkeypatch.setattr(Console, "is_terminal", True)
        monkeypatch.setenv("COLUMNS", "400")
        monkeypatch.setenv("TERM", "xterm")
    display = ProgressDisplay()
    display.begin(f"played{nasty}", 2, lambda: Status(outcome=nasty, score=nasty, calls=nasty))
    with display:
        display.complain(f"E: {nasty}")
        display.update(1)
    err = capsys.readouterr().err
    if terminal:  # colours and movements of the bar's own
        assert f"played{one_line(nasty)}" in re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", err)
        err = re.sub(r"\x1b\[(?:[0-9;]*m|[0-9]*[AK]|2K|\?25[lh])|\r", "", err)
    assert not harmful(err)


MARKDOWN = (
    "[a link](http://example.org) ![](http://example.org/pixel.png)",
    "<img src=http://example.org/x><script>alert(1)</script>",
    "[x]: http://example.org\n\n[x]",
    "one\n\n```\n![](http://example.org/2)\n```\n\n# A heading",
    "a\r\r![](http://example.org)\u2028\u2028- item\n\n| a | b |\n|--|--|\n| c | d |",
)


@pytest.mark.parametrize("text", [*MARKDOWN, *NASTY], ids=ascii)
def test_tensorboard_gets_a_text_as_code(text: str) -> None:
    html = markdown.markdown(code_block(text), extensions=["tables", "fenced_code"])
    assert set(re.findall(r"</?(\w+)", html)) <= {"pre", "code"}
    assert not harmful(html)
