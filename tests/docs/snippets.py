"""The fenced blocks of the documents, and the commands in them.

A block's language says what is done with it: `sh` holds commands, a line each; `python` is executed; `toml`,
`json` and `csv` are data; `text` is a message, whose lines the site wraps; `console` is laid out in columns:
a command's usage, a table. A block with a title is a file of that name in the reader's folder.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = {"sh", "python", "toml", "json", "csv", "text", "console"}

_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_SETTING = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """A fenced block."""

    page: Path
    language: str
    title: str
    """The file that it is; empty where it is none."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of a shell block, as it stands there."""

    text: str
    words: tuple[str, ...]
    """The program and its arguments, without settings of the environment before them."""
    piped: str | None = None
    """What `echo TEXT |` puts into its standard input."""


def snippets(page: Path) -> list[Snippet]:
    """The fenced blocks of a page, in their order."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [
        Snippet(page=page, language=language, title=title, text=text)
        for language, title, text in found
    ]


def commands(snippet: Snippet) -> list[Command]:
    """The commands of a shell block."""
    lines = snippet.text.replace("\\\n", " ").splitlines()
    return [_command(line) for line in lines if shlex.split(line, comments=True)]


def _command(line: str) -> Command:
    words = shlex.split(line, comments=True)
    piped = None
    if "|" in words:
        end = words.index("|")
        assert words[0] == "echo", f"only echo may stand before a pipe: {line}"
        piped, words = " ".join(words[1:end]) + "\n", words[end + 1 :]
    while _SETTING.fullmatch(words[0]):
        words = words[1:]
    return Command(text=line, words=tuple(words), piped=piped)
