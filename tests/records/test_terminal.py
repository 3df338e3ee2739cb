"""Text of others is harmless wherever it is printed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from records.progress import ProgressDisplay, Status
from records.terminal import one_line, printable
from tests.nasty import ALL, harmful


def test_what_a_terminal_would_obey_is_visible_and_the_rest_as_it_is() -> None:
    assert printable("\x1b]52;c;cm0=\x07 a\rb\x00") == r"\x1b]52;c;cm0=\x07 a\rb\x00"
    assert printable("\u202egpj.exe a\u200bb \U000e0041") == r"\u202egpj.exe a\u200bb \U000e0041"
    fine = "café, \u00a0\u3000 \u4f60\u597d \U0001f600 [red]\tx\n"
    assert printable(fine.replace("\n", "\r\n")) == fine


@given(st.text(st.characters()))
def test_printable_text_is_harmless_and_stays_the_same(text: str) -> None:
    assert not harmful(printable(text).replace("\t", ""))
    assert printable(printable(text)) == printable(text)
    assert "\n" not in one_line(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_harmless(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
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
