"""Writes a page of all commands as `--help` shows them: `python -m cli.reference [FILE]`.

`make docs` writes docs/commands.md before it builds the site; the page is not in git.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cli.main import make_app

INTRODUCTION = """\
# Commands

Made from each command's `--help`. All commands have these in common:

- `--config FILE` reads flags from a TOML file, without their dashes. The command line overrides it.
- `--trust-run` uses the code, hosts and files that a run folder names: [What a run folder may
  do](runs.md#what-a-run-folder-may-do).
- Results go to stdout, progress and messages to stderr. `--quiet` shows only results and errors.
  `--json -` writes results to stdout as JSON instead of tables (`ask --json` is a switch).
- [Exit codes](runs.md#exit-codes) say how a command ended.
- A default in square brackets without `default:` depends on something else.
- `mutagym --install-completion` sets up bash, zsh or fish; `mutagym --version` prints the version.

"""


def reference() -> str:
    """The page, in Markdown."""
    text = re.sub(r"\n {8}(?=\S)", " ", make_app().generate_docs())  # descriptions that go on
    commands = text[text.index("**Commands**") :]
    return INTRODUCTION + re.sub(r" +$", "", commands, flags=re.MULTILINE).strip() + "\n"


if __name__ == "__main__":
    page = sys.argv[1] if len(sys.argv) > 1 else "docs/commands.md"
    sys.argv = ["mutagym"]  # the program's name in the usage lines
    Path(page).write_text(reference(), encoding="utf-8")
