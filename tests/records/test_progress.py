"""How far a command is: lines that stay put on a terminal and leave nothing, else one a minute."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from records.progress import ProgressDisplay, Status, digits, duration, sparkline

_CODE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Screen:
    """What a terminal shows: line ends, the cursor going up, erased lines, whether it is shown."""

    def __init__(self) -> None:
        self.lines: dict[int, str] = {}
        self.cursor_is_shown = True
        self._row = self._column = 0
        self._rest = ""

    def write(self, text: str) -> None:
        """Show a text; what may be the beginning of a code waits for the rest."""
        text = self._rest + text
        cut = len(text) if "\x1b" not in text[-16:] else text.rindex("\x1b")
        cut = len(text) if _CODE.match(text[cut:]) else cut
        self._rest = text[cut:]
        for private, numbers, letter, end, words in _CODE.findall(text[:cut]):
            if words:
                line = self.lines.get(self._row, "").ljust(self._column)
                after = line[self._column + len(words) :]
                self.lines[self._row] = line[: self._column] + words + after
                self._column += len(words)
            elif end:
                self._column = 0
                self._row += end == "\n"
            elif letter == "A":
                self._row -= int(numbers or 1)
            elif letter == "K":
                self.lines[self._row] = ""
            elif private and numbers == "25":
                self.cursor_is_shown = letter == "h"

    def rows(self, words: str) -> list[int]:
        """The rows that hold these words."""
        return [row for row, line in self.lines.items() if words in line]


def test_on_a_terminal_lines_stay_put_and_after_ctrl_c_only_how_to_go_on_is_left(
    tmp_path: Path,
) -> None:
    ours, theirs = os.openpty()
    slow = ("--ollama-host", "embedded", "--time-scale", "1", "--run-dir", str(tmp_path / "run"))
    sized = {"COLUMNS": "160", "LINES": "40", "TERM": "xterm", "PYTHONUTF8": "1"}
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-m", "mutagym", "evolve", *slow],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),  # type: ignore[call-overload]
        env=os.environ | sized,
    )
    os.close(theirs)
    screen, raw, drawings = Screen(), b"", 0
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                raw += terminal.read(65536)
            except OSError:  # Linux: nobody holds the other end any more
                break
            text = raw.decode("utf-8", "ignore")
            raw = raw[len(text.encode()) :]
            if not text:
                break
            screen.write(text)
            rows = screen.rows("generations ━") + screen.rows("calls/s ·")
            if len(rows) > 1:
                assert max(rows) - min(rows) <= 3
                drawings += 1
                if drawings == 3:
                    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert screen.rows("━") == screen.rows("calls/s ·") == []
    (hint,) = screen.rows("to go on: mutagym evolve --resume")
    (error,) = screen.rows("mutagym: stopped by SIGINT")
    assert hint < error == max(row for row, line in screen.lines.items() if line.strip())
    assert screen.cursor_is_shown


def test_elsewhere_a_line_is_printed_first_last_and_once_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 0
    status = Status(outcome="success 50 %", score="return 0.5", trend=[0, 1], calls="2 calls/s")
    with ProgressDisplay(clock=lambda: now_s) as display:
        display.begin("episodes played", 10, lambda: status)
        for second in range(201):
            now_s = second
            display.update(second // 20)
    assert capsys.readouterr().err.splitlines() == [
        f"episodes played: {far}, success 50 %, return 0.5, 2 calls/s"
        for far in (
            "0 of 10",
            "3 of 10, about 2 min left",
            "6 of 10, about 80 s left",
            "9 of 10, about 20 s left",
            "10 of 10",
        )
    ]


def test_numbers_are_as_precise_as_they_are_sure() -> None:
    rates = (0, 0.04163, 0.1, 4.8049, 43.06, 99.96, 1234.5)
    assert [digits(rate) for rate in rates] == ["0", "0.0416", "0.1", "4.8", "43.1", "100", "1,234"]
    seconds = (0.2, 99, 100, 3600, 12_600)
    assert [duration(s) for s in seconds] == ["0 s", "99 s", "2 min", "60 min", "3.5 h"]


def test_a_trend_is_drawn_between_its_own_ends() -> None:
    assert (sparkline([1.0]), sparkline([0.5, 0.5, 0.5])) == ("", "▁▁▁")
    assert sparkline([0, float("nan"), -1]) == "█▁"
    assert sparkline([9] * 8 + [0] * 31 + [1]) == "▁" * 31 + "█"
