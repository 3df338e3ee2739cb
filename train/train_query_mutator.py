"""The door to `mutagym train` by the name that it has always had; the command is `cli/train.py`."""

from __future__ import annotations

import sys
from functools import partial

if __name__ == "__main__":
    from cli.main import execute_one, launch
    from cli.train import train

    launch(partial(execute_one, train, sys.argv[1:]))
