"""The name that is mutagym's alone: once it is imported, its folders are found before all others.

They have names that a project of one's own may have, too, such as `train` and `envs`. The command
begins here, so that it depends neither on PYTHONPATH nor on the folder in which it is called. In a
script of your own beside a `train.py` of your own:

    import mutagym
    from train import LanePPO
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TypeVar

Result = TypeVar("Result")
_ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = frozenset(
    {
        *("cli", "envs", "evaluation", "mutators", "ollama_utils", "records"),
        *("report", "scorers", "search", "simulator", "train"),
    }
)


class _Folders:
    """Finds the folders beside this one, as an entry of `sys.meta_path`."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(_ROOT)]) if name in _FOLDERS else None


def find_folders_first() -> None:
    """Make Python find these folders, whatever else has their names.

    Raises:
        ImportError: a file of such a name is imported already.
    """
    for name in _FOLDERS & sys.modules.keys():
        file = getattr(sys.modules[name], "__file__", None)
        if not file or not Path(file).resolve().is_relative_to(_ROOT / name):
            raise ImportError(
                f"{file or name!r} has the name of a folder of mutagym: import mutagym before it, "
                "or rename it"
            )
    if _Folders not in sys.meta_path:
        sys.meta_path.insert(0, _Folders)


def call(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function. Sent to another process, this is unpickled first: the function is found."""
    return function(*arguments)


def main() -> None:
    """Run the `mutagym` command with the process's arguments."""
    from cli.launch import main as launch

    launch()


find_folders_first()
