"""Runs of one's own and of others: what of a run folder's settings may be used without being asked for.

A command that goes on with a run, or uses its policy, takes settings from the run's config.toml. Some of
them are code that is run (a mutator in a file), hosts that are called, and files that are read and may be
sent to a model. In a run that this user made on this machine they are used as they stand. In any other they
are used only where the user names them again by flag, or trusts the run as a whole.

A run of one's own is known by `made-here.json`: an HMAC-SHA256 over the text of config.toml, keyed with
random bytes that are kept in the user's state folder, `$XDG_STATE_HOME/mutagym/run-key` or
`~/.local/state/mutagym/run-key`. It covers the one file that decides code, hosts and files, and not the
folder's place, so that a folder may be moved or renamed. A mark copied beside another config.toml does not
fit; copied along with its own it names only what the user named once. What stands in the files that
config.toml names is not covered: who lets others write these lets them in anyway.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from records.errors import UserError
from records.reading import MOST_BYTES, read_json_object, read_text
from records.seed_folders import seed_folders

CONFIG = "config.toml"
MARK = "made-here.json"
KEY = "run-key"
_KEY_BYTES = 32
_PURPOSE = b"mutagym config.toml\0"
_SHOWN = 4
"""Values of a kind that a message names."""
_SHOWN_CHARS = 120

Kind = Literal["code", "hosts", "files"]
KINDS: tuple[Kind, ...] = ("code", "hosts", "files")

_PROMPT_FILES = (".txt", ".md", ".prompt")
"""A prompt of one word with one of these endings is a file, whether it is there or not."""

ALWAYS: Mapping[str, Kind] = {
    **dict.fromkeys(("scorer", "evaluate"), "code"),
    "ray-address": "hosts",
    **dict.fromkeys(
        ("queries", "guard-queries", "task", "prompts", "judge-rubric", "judge-accuracy"), "files"
    ),
    **dict.fromkeys(("mission", "faults", "run-dir", "resume", "cache", "json", "junit"), "files"),
}
"""Flags whose every value is code, a host, or a file or folder."""
_OWN_POLICIES = "noop|random|round_robin|best_fixed|epsilon_greedy|ucb1|exp3|linucb|thompson"
_POLICY = rf"({_OWN_POLICIES}|(fixed|llm):.*)(,.*)?"
BY_VALUE: Mapping[str, tuple[Kind, re.Pattern[str]]] = {
    "mutators": ("code", re.compile(r"\w+")),
    "encoder": (
        "code",
        re.compile(r"hashing(:\d+)?|ollama:.*|(sentence-transformers/)?all-MiniLM-L6-v2", re.DOTALL),
    ),
    "reward": ("code", re.compile("refusal|judge|keyword")),
    "world": ("files", re.compile("cautious|drawn")),
    "ollama-host": ("hosts", re.compile("embedded|smollm2")),
    "policy": ("files", re.compile(_POLICY, re.DOTALL)),
    "baselines": ("files", re.compile(_POLICY, re.DOTALL)),
}
"""Flags that take names of ours, which are harmless, and what any other value is. (A model may hold code.)"""
WORDS = frozenset(
    {
        *("actor", "critic", "selection", "selector", "split", "algorithm", "schedule", "preset", "format"),
        *("fail-under", "fail-over"),
        *("engine", "policy-wrapper", "reply-tokens", "max-in-flight", "option", "price"),
        *("target-model", "mutator-model", "judge-model", "audit-judge", "models"),
        *("target-system", "where", "prompt-column", "group-column", "guard-where", "guard-column"),
    }
)
"""Flags whose values are words, models' names or texts: nothing is run, opened or called by them."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that a run folder names."""

    kind: Kind
    flag: str
    """The flag that sets it, without its dashes; "" where there is none."""
    value: str

    def told(self, *, whole: bool) -> str:
        """The part on one line, whole or cut short."""
        text = self.value if whole or len(self.value) <= _SHOWN_CHARS else f"{self.value[:_SHOWN_CHARS]}…"
        return f"--{self.flag} {text!r}" if self.flag else repr(text)


def parts_of(settings: Mapping[str, Sequence[str]]) -> list[Part]:
    """The code, hosts and files among settings; a setting that is not known here counts as a file.

    Args:
        settings: for each flag, without its dashes, the values as text.
    """
    found = ((_kind(flag, value), flag, value) for flag, values in settings.items() for value in values)
    return [Part(kind=kind, flag=flag, value=value) for kind, flag, value in found if kind]


def usable_settings(
    run: Path, settings: Mapping[str, Sequence[str]], *, trusted: bool, links: bool = False
) -> frozenset[str]:
    """The flags that a run folder may set: all of them where the run is the user's own, or trusted.

    Nothing is imported, opened or called before this returns. With `trusted` the first line on stderr says
    what is used. A host that the run names is left out, and that is said, where OLLAMA_HOST names another.

    Args:
        run: the folder.
        settings: what its config.toml says, as for `parts_of`, less what the user said.
        trusted: whether the user said --trust-run.
        links: whether the folder is written, too, so that links in it count as files, whosever it is: no
            mark covers them.

    Raises:
        UserError: the run is not the user's own, and names code, hosts or files that the user did not; or
            it is written, and holds links.
    """
    own = is_made_here(run)
    linked = _links(run) if links else []
    parts = parts_of(settings) + linked
    if trusted:
        said = _told(parts, whole=True) or "no code, hosts or files of its own"
        print(f"trusted: the run {str(run)!r} uses {said}", file=sys.stderr)  # noqa: T201 - the user's to see
        return frozenset(settings)
    if own and linked:
        raise UserError(
            f"the run {str(run)!r} was made here, but would be written elsewhere by the links in it, "
            f"{_told(linked)}: put the files themselves there, or say --trust-run"
        )
    if own:
        return frozenset(settings)
    has_host = bool(os.environ.get("OLLAMA_HOST"))
    left_out = {part.flag for part in parts if part.kind == "hosts" and has_host}
    if unnamed := [part for part in parts if part.flag not in left_out]:
        raise UserError(
            f"the run {str(run)!r} was not made here, or its {CONFIG} was changed since, and it names "
            f"{_told(unnamed)}: name each by a flag of your own, or say --trust-run to use them all"
        )
    if left_out:
        print(  # noqa: T201 - the user's to see
            f"note: OLLAMA_HOST is called, not the hosts of the run {str(run)!r}, which was not made here",
            file=sys.stderr,
        )
    return frozenset(settings) - left_out


def is_prompt_file(text: str) -> bool:
    """Whether a prompt, as a flag gives it, is the path of a file."""
    try:
        there = Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or a NUL in it
        return False
    return there or (text.endswith(_PROMPT_FILES) and len(text.split()) == 1)


def is_run_config(path: Path) -> bool:
    """Whether a TOML file is the config.toml of a run folder."""
    beside = (MARK, "replies.sqlite", "parts.json", "queries.json", "missions.json", "checkpoints")
    return path.name == CONFIG and any((path.parent / name).exists() for name in beside)


def written_in(run: Path) -> Iterator[Path]:
    """What stands in the folders of a run, and of its seeds, that are written."""
    runs = (run, *seed_folders(run))
    folders = (folder for each in runs for folder in (each, each / "checkpoints", each / "tb"))
    return (item for folder in folders if folder.is_dir() for item in folder.iterdir())


def is_made_here(run: Path) -> bool:
    """Whether this user made the run on this machine, and its config.toml is as it was written."""
    try:
        key = _read_key()
        marks = _marks(run)
        return any(hmac.compare_digest(mark, _mark(key, read_text(run / CONFIG))) for mark in marks)
    except (OSError, ValueError):
        return False


def marks_for(run: Path, text: str) -> dict[str, list[str]] | None:
    """What `made-here.json` is to hold for a config.toml of this text; None, and why on stderr: no key.

    The mark of what stands there now is kept: a process that is killed between the two writes leaves a run
    that is still known.
    """
    try:
        key = _read_key(make=True)
    except (OSError, ValueError) as error:
        print(  # noqa: T201 - the user's to see
            f"note: the run is not marked as made here ({error}): going on with it, or using its policy, may "
            "ask for --trust-run",
            file=sys.stderr,
        )
        return None
    before: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        now = _mark(key, read_text(run / CONFIG))
        before = [now] if now in _marks(run) else []
    return {"config_toml_hmac_sha256": list(dict.fromkeys([_mark(key, text), *before]))}


def _kind(flag: str, value: str) -> Kind | None:
    """What a value of a flag is; None: nothing that is run, called or opened."""
    kind: Kind | None = ALWAYS.get(flag)
    if flag in BY_VALUE:
        other, ours = BY_VALUE[flag]
        kind = None if ours.fullmatch(value) else other
    elif flag == "seed-prompt":
        kind = "files" if is_prompt_file(value) else None
    elif kind is None and flag not in WORDS and not _is_number(value):
        kind = "files"
    names_code = flag in {"policy", "baselines", "mission"} and re.search(r"\bclass *=|\.py\b", value)
    return "code" if kind and names_code else kind


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return value.lower() in {"true", "false"}
    return True


def _links(run: Path) -> list[Part]:
    """The symbolic links in a folder: what is written through one is written elsewhere."""
    links = sorted(str(item.relative_to(run)) for item in written_in(run) if item.is_symlink())
    return [Part(kind="files", flag="", value=f"{name} -> {(run / name).readlink()}") for name in links]


def _told(parts: Sequence[Part], *, whole: bool = False) -> str:
    """`code (--mutators 'a.py:f') and hosts (--ollama-host 'http://a')`; "" without any.

    Args:
        parts: what there is.
        whole: nothing is left out, however much there is.
    """
    groups = []
    for kind in KINDS:
        named = [part.told(whole=whole) for part in parts if part.kind == kind]
        shown = named if whole else named[:_SHOWN]
        more = f" and {len(named) - len(shown)} more" if len(named) > len(shown) else ""
        if named:
            groups.append(f"{kind} ({', '.join(shown)}{more})")
    return " and ".join([", ".join(groups[:-1]), groups[-1]] if groups[1:] else groups)


def _marks(run: Path) -> list[str]:
    marks = read_json_object(run / MARK).get("config_toml_hmac_sha256")
    listed = marks if isinstance(marks, list) else []
    return [mark for mark in listed if isinstance(mark, str) and mark.isascii()]


def _mark(key: bytes, text: str) -> str:
    return hmac.new(key, _PURPOSE + text.encode(), hashlib.sha256).hexdigest()


def _state_folder() -> Path:
    """Where the user's key is kept, by the XDG base directory specification.

    Raises:
        ValueError: there is no home.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named / "mutagym"
    try:
        home = Path.home() if os.environ.get("HOME", "x") else Path()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():
        raise ValueError("neither XDG_STATE_HOME nor HOME names a folder")
    return home / ".local" / "state" / "mutagym"


def _read_key(*, make: bool = False) -> bytes:
    """The user's key; made where there is none and `make` says so.

    Raises:
        OSError: it cannot be read or made.
        ValueError: it is no key of this user's alone.
    """
    path = _state_folder() / KEY
    if make and not path.exists():
        _make_key(path)
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        key = file.read(MOST_BYTES)
    if not stat.S_ISREG(about.st_mode) or len(key) != _KEY_BYTES:
        raise ValueError(f"{str(path)!r} is damaged: delete it")
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise ValueError(f"{str(path)!r} is open to others: chmod 600 it")
    return key


def _make_key(path: Path) -> None:
    """Write a key whole or not at all; of two processes that do so the first one's stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{KEY}-{secrets.token_hex(8)}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - its mode
            file.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(part)
    finally:
        part.unlink(missing_ok=True)
