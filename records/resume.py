"""Going on with a run: what must be as it was, and the command line that goes on with it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.errors import UserError
from records.settings import as_texts, as_words, flat_table, read_toml, resolved
from records.trust import kind_of

if TYPE_CHECKING:
    from records.run_folder import RecordedRun

HOSTS_AND_LIMITS = frozenset(
    {
        *("ollama-host", "slots", "time-scale", "load-s", "max-loaded-models", "faults"),
        *("max-in-flight", "call-timeout-s", "call-attempts", "max-outage", "max-reply-chars"),
        *("engine", "ray-address", "request-field"),
    }
)
"""The options that any resumed run may change. Only its pace depends on them, and the place where a
reply that is far too long is cut."""


def resume_line(
    command: str,
    run: Path,
    config: Any,  # noqa: ANN401 - any config dataclass
    copied: Collection[str] = (),
) -> str:
    """How to go on with a run: `to go on: mutagym train --resume RUN --ollama-host http://a`.

    It says again what a run folder may not say itself, but for flags of files that are `copied`
    there: code, hosts, files. The config is that of the run, its hosts known.
    """
    words = ["mutagym", command, "--resume", str(run)]
    for flag, value in flat_table(config).items():
        values = as_texts(value)
        if flag not in {*copied, "resume", "run-dir"} and any(kind_of(flag, v) for v in values):
            words += as_words(flag, values)
    return f"to go on: {shlex.join(words)}"


def check_options(
    config: Any,  # noqa: ANN401 - any config dataclass
    path: Path,
    may_change: Collection[str],
    *,
    run_dir: Path | None,
) -> None:
    """Check that the config is the one that the run in `path` began with; a UserError if not.

    Args:
        config: the config.
        path: the folder of the run.
        may_change: the options that may change beside `HOSTS_AND_LIMITS`.
        run_dir: the folder that the config names for a new run, if it does.
    """
    if run_dir and run_dir.resolve() != path.resolve():
        raise UserError(
            f"--run-dir {run_dir} and --resume {path}: a resumed run stays in its folder; "
            "leave out --run-dir"
        )
    before = read_toml(path / "config.toml")
    now = resolved(config)
    for flag in sorted({*before, *now} - HOSTS_AND_LIMITS - {*may_change}):
        value, began_with = now.get(flag), before.get(flag)
        value = list(value) if isinstance(value, tuple) else value
        if value != began_with:
            raise UserError(
                f"--{flag} is {_shown(value)}, but the run began with {_shown(began_with)}: "
                "leave it out, or begin a new run (--help says what --resume may change)"
            )


def check_fingerprints(fingerprints: Mapping[str, str], folder: RecordedRun) -> None:
    """Check that the parts of the run are as parts.json has them; a UserError if not."""
    before = folder.read_json("parts.json")
    for name in sorted({*before, *fingerprints}):
        if before.get(name) != fingerprints.get(name):
            raise UserError(
                f"{name!r} is not what the run in {str(folder.path)!r} began with: "
                "bring that back, or begin a new run"
            )


def file_fingerprints(kind: str, paths: Iterable[str | Path]) -> dict[str, str]:
    """The SHA-256 of each file, by `kind path`; one that cannot be read is a UserError."""
    try:
        return {
            f"{kind} {path}": sha256(Path(path).read_bytes()).hexdigest()
            for path in sorted(map(str, paths))
        }
    except OSError as error:
        raise UserError(f"{error.filename!r} cannot be read: {error.strerror}") from error


def _shown(value: Any) -> str:  # noqa: ANN401 - a TOML value
    return "not set" if value is None else f"{value!r:.40}"
