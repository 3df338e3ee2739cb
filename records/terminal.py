"""Prints text of others (a model's words, a server's names, a file's rows) without harm.

A terminal obeys escape sequences: they clear the screen, write the clipboard, move the cursor over
what was printed before. Here they become visible. What is written into files stays as it is.
"""

from __future__ import annotations

import sys
import unicodedata
from contextlib import redirect_stdout
from typing import TextIO


def printable(text: str) -> str:
    r"""The text with `\x1b` for an escape, `\u202e` for what turns the direction of writing.

    So are all characters of Unicode's categories for control, format and unassigned ones; newlines,
    tabs and blanks of any width stay.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, text.replace("\r\n", "\n")))


def _visible(char: str) -> str:
    if char.isprintable() or char in "\n\t" or unicodedata.category(char) == "Zs":
        return char
    return ascii(char)[1:-1]


def one_line(text: str) -> str:
    """The same in one line: its words with one blank between them."""
    return printable(" ".join(text.split()))


def write_stderr(text: str) -> None:
    """Print a line on stderr at once."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def prints_on_stderr() -> redirect_stdout[TextIO]:
    """Within `with`: what a user's functions print goes to stderr, for stdout is the results'."""
    return redirect_stdout(sys.stderr)


def counted(number: int, what: str) -> str:
    """`1 call`, `12,400 calls`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
