"""Writes docs/commands.md: every command with every flag, as `--help` tells them.

python -m cli.reference    # after a change of a flag; a test holds that the page is up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cli.main import make_app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
_INTRODUCTION = """\
# Commands

Written by `python -m cli.reference` from the commands' own `--help`.

What holds for all of them:

- `--config FILE` reads flags from a TOML file: a flag's name without its dashes is the key. What is
  given on the command line overrides it.
- `--trust-run` uses the code, hosts and files that a run folder names: [What a run folder may
  do](runs.md#what-a-run-folder-may-do).
- Results go to stdout, progress and messages to stderr. `--quiet` leaves results and errors alone;
  `--json -` writes the results to stdout as JSON, in the place of the tables (`ask --json` is a
  switch).
- The exit code is 0 when all is done; what the others say stands under [Run
  folders](runs.md#exit-codes).
- A default in square brackets without `default:` depends on something else, as its words say.
- `mutagym --install-completion` sets up bash, zsh or fish; `mutagym --version` says the version.

"""
_TITLE = re.compile(r"\A.*?(?=^\*\*Commands)", re.DOTALL | re.MULTILINE)
"""What the generated text has before its list of the commands."""
_CONTINUED = re.compile(r"\n {8}(?=\S)")


def reference() -> str:
    """The page, in Markdown."""
    flags = _CONTINUED.sub(" ", make_app().generate_docs())
    lines = (line.rstrip() for line in _TITLE.sub(_INTRODUCTION, flags, count=1).splitlines())
    return "\n".join(lines).strip() + "\n"


def main() -> None:
    """Write the page."""
    sys.argv = ["mutagym"]  # whose name stands in the usage
    PAGE.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
