"""The door to `mutagym train` by the name that it has always had; the command is `cli/train.py`."""

from __future__ import annotations

import sys

import mutagym  # noqa: F401 - finds our folders, whatever stands beside the caller


def _train() -> int:
    from cli.main import execute_one
    from cli.train import train

    return execute_one(train, sys.argv[1:])


if __name__ == "__main__":
    from cli.launch import launch

    launch(_train)
