"""Going on with a run: what must be as it was."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.errors import UserError
from records.settings import old_names, read_toml, resolved

if TYPE_CHECKING:
    from records.run_folder import RecordedRun

HOSTS_AND_LIMITS = (
    *("ollama-host", "slots", "time-scale", "load-s", "max-loaded-models", "faults"),
    *(
        "max-in-flight",
        "call-timeout-s",
        "call-attempts",
        "max-outage",
        "max-reply-chars",
        "engine",
        "ray-address",
    ),
)
"""The options that any resumed run may change: nothing in it depends on them but its pace, and where a reply
that is far too long is cut."""
_SHOWN_CHARS = 40


def check_options(
    config: Any,  # noqa: ANN401 - any config dataclass
    path: Path,
    may_change: Sequence[str],
    *,
    run_dir: Path | None,
    changed_since: Collection[str] = (),
) -> None:
    """Check that the config is the one that the run in `path` began with, but for some options.

    An option that its version did not have is to have its default now.

    Args:
        config: the config.
        path: the folder of the run.
        may_change: the options that may change beside `HOSTS_AND_LIMITS`.
        run_dir: the folder that the config names for a new run, if it does.
        changed_since: options that must be there: versions without them did what no value of them does.

    Raises:
        UserError: it is not; the message names the option.
    """
    if run_dir and run_dir.resolve() != path.resolve():
        raise UserError(f"--run-dir {run_dir} and --resume {path}: a resumed run stays in its folder")
    recorded, renamed = read_toml(path / "config.toml"), old_names(config)
    before = {renamed.get(name, name): value for name, value in recorded.items()}
    now, default = (_set(each) for each in (config, type(config)()))
    before = {name: default[name] for name in default if name not in changed_since} | before
    for name in sorted({*before, *now} - {*HOSTS_AND_LIMITS, *may_change}):
        if before.get(name) != now.get(name):
            then = _shown(before[name]) if name in before else "none, or before there was such a flag"
            raise UserError(
                f"--{name} is {_shown(now.get(name))}, but the run began with {then}: leave it out, or begin "
                "a new run (--help says what --resume may change)"
            )


def check_fingerprints(fingerprints: Mapping[str, str], folder: RecordedRun) -> None:
    """Check that the parts of the run, of which parts.json has fingerprints, are those that it began with.

    Raises:
        UserError: one is not.
    """
    before = folder.read_json("parts.json")
    for name in sorted({*before, *fingerprints}):
        if before.get(name) != fingerprints.get(name):
            raise UserError(
                f"{name!r} is not what the run in {str(folder.path)!r} began with: bring that back, or begin "
                "a new run"
            )


def file_fingerprints(kind: str, paths: Iterable[str | Path]) -> dict[str, str]:
    """The SHA-256 of each file, by `kind path`.

    Raises:
        UserError: one cannot be read.
    """
    try:
        return {
            f"{kind} {path}": sha256(Path(path).read_bytes()).hexdigest() for path in sorted(map(str, paths))
        }
    except OSError as error:
        raise UserError(f"{error.filename!r} cannot be read: {error.strerror}") from error


def _shown(value: Any) -> str:  # noqa: ANN401 - a TOML value
    """The value, cut short: the message is to stay one that is read."""
    text = "not set" if value is None else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _set(config: Any) -> dict[str, Any]:  # noqa: ANN401 - any config dataclass
    """The options that are set, as TOML has them."""
    return {name: _plain(value) for name, value in resolved(config).items() if value is not None}


def _plain(value: Any) -> Any:  # noqa: ANN401 - a TOML value
    return list(value) if isinstance(value, tuple) else value
