"""Text of others is harmless wherever it is printed."""

from __future__ import annotations

import re

import markdown  # type: ignore[import-untyped] # what TensorBoard turns texts into HTML by
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from records.progress import ProgressDisplay, Status
from records.terminal import code_block, one_line, printable
from tests.nasty import ALL, NASTY, harmful


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


def test_progress_is_harmless(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal in (False, True):
        if terminal:
            monkeypatch.setattr(Console, "is_terminal", True)
            monkeypatch.setenv("COLUMNS", "400")
            monkeypatch.setenv("TERM", "xterm")
        display = ProgressDisplay()
        display.begin(f"played{ALL}", 2, lambda: Status(outcome=ALL, score=ALL, calls=ALL))
        with display:
            display.complain(f"E: {ALL}")
            display.update(1)
        err = capsys.readouterr().err
        if terminal:  # colours and movements of the bar's own
            err = re.sub(r"\x1b\[(?:[0-9;]*m|[0-9]*[AK]|2K|\?25[lh])|\r", "", err)
        assert not harmful(err)


MARKDOWN = (
    "[a link](http://example.org) ![](http://example.org/pixel.png)",
    "<img src=http://example.org/x><script>alert(1)</script>",
    "[x]: http://example.org\n\n[x]",
    "one\n\n```\n![](http://example.org/2)\n```\n\n# A heading",
    "a\r\r![](http://example.org)\u2028\u2028- item\n\n| a | b |\n|--|--|\n| c | d |",
)


def test_tensorboard_gets_a_text_as_code() -> None:
    for text in (*MARKDOWN, *NASTY):
        html = markdown.markdown(code_block(text), extensions=["tables", "fenced_code"])
        assert set(re.findall(r"</?(\w+)", html)) <= {"pre", "code"}
        assert not harmful(html)
