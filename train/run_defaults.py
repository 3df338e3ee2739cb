"""The run folder that `-p` names gives the flags their defaults: its server, models, queries and mutators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.toml_files import read_toml

COMMANDS = ("eval", "ask")
"""The commands whose `--policy` may name a run."""
CONFIG = "config.toml"


def mission_keys() -> frozenset[str]:
    """The flags that a command takes over from a run: those of its mission and of its server."""
    from train.mission import MissionConfig
    from train.server import ServerConfig
    from train.settings import resolved

    return frozenset(resolved(MissionConfig()) | resolved(ServerConfig()))


def run_named(tokens: Sequence[str], table: Mapping[str, Any]) -> Path | None:
    """The first run folder among the values of `-p` or `--policy`, if there is one.

    Args:
        tokens: the command line, the command's name first.
        table: the flags of `--config`, for what the command line leaves out.
    """
    if not tokens or tokens[0] not in COMMANDS:
        return None
    in_table = table.get("policy", [])
    policies = list(_policies(tokens)) or ([in_table] if isinstance(in_table, str) else in_table)
    return next((path for text in policies if (path := run_path(str(text)))), None)


def run_path(policy: str) -> Path | None:
    """The run folder that a policy's text names: `RUN`, `run=RUN` or `run=RUN,key=value`; None: no run."""
    path = Path(policy.removeprefix("run=").partition(",")[0])
    return path if (path / CONFIG).is_file() else None


def defaults_of_run(path: Path, keys: Collection[str]) -> dict[str, Any]:
    """What the run in the folder `path` was told, by the names of its flags.

    Args:
        path: a run folder.
        keys: the flags that matter; the others are left out.

    Raises:
        UserError: there is no config.toml that can be read.
    """
    try:
        table = read_toml(path / CONFIG)
    except OSError as error:
        raise UserError(
            f"{str(path)!r} has no {CONFIG} that can be read ({error.strerror}); expected the folder of a run"
        ) from error
    return {key: value for key, value in table.items() if key in keys}


def _policies(tokens: Sequence[str]) -> Iterator[str]:
    """The values of `-p` and `--policy`."""
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        flag, equals, value = token.partition("=")
        if flag in {"-p", "--policy"}:
            yield value if equals else following
        elif token.startswith("-p") and not token.startswith("--"):
            yield token[2:]
