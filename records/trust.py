"""What a run folder may do: be data. It runs no code, calls no host, opens no file elsewhere.

A command that goes on with a run, or uses its policy, takes the settings that the user leaves out
from the run's config.toml: numbers, texts, names of what is built in. What else stands there is
code, a host or a file outside the folder, and is used where the user names it again, or says
`--trust-run`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from records.errors import UserError
from records.settings import as_words
from records.terminal import one_line, write_stderr

Kind = Literal["code", "hosts", "files"]
KINDS: tuple[Kind, ...] = ("code", "hosts", "files")
_POLICY = "(noop|random|round_robin|best_fixed|linucb|cascade|(fixed|llm):.*)(,.*)?"
SAFE_VALUES: Mapping[str, tuple[Kind, str]] = {
    "mutators": ("code", r"\w+"),
    "mutator": ("code", r"\w+"),
    "encoder": ("code", r"hashing(:\d+)?|ollama:.*|(sentence-transformers/)?all-MiniLM-L6-v2"),
    "reward": ("code", "refusal|judge|keyword|exact|number|choice|f1|contains"),
    "scorer": ("code", "exact|number|choice|f1|contains"),
    "evaluate": ("code", "(?!)"),
    "ollama-host": ("hosts", "embedded|smollm2"),
    "ray-address": ("hosts", "(?!)"),
    "policy": ("files", _POLICY),
    "baselines": ("files", _POLICY),
    "world": ("files", "cautious|drawn"),
}
"""For each flag: what its values name, and a pattern for the values that are only data.

The encoder and the reward are code because a model may hold code."""
DATA = frozenset(
    {
        *("actor", "algorithm", "answer-column", "critic", "engine", "fail-over", "fail-under"),
        *("format", "group-column", "guard-column", "guard-where", "judge-model", "judge-think"),
        *("max-in-flight", "models", "mutator-model", "mutator-think", "name", "option"),
        *("policy-wrapper", "preset", "price", "prompt-column", "reply-tokens", "request-field"),
        *("schedule", "selector", "split", "target-model", "target-system", "think"),
        *("thought-marks", "where"),
    }
)
"""Flags whose values are words, names of models or texts; one that is not known names files."""
FILES = frozenset(
    {
        *("cache", "faults", "guard-queries", "json", "judge-accuracy", "judge-rubric"),
        *("mission", "prompts", "queries", "resume", "run", "run-dir", "task"),
    }
)
"""Flags whose every value is a file or a folder, be it called `5`."""
_PROMPT_FILES = (".txt", ".md", ".prompt")
"""A prompt of one word with one of these endings is a file, whether it is there or not."""


def kind_of(flag: str, value: str) -> Kind | None:
    """What a value of a flag (without its dashes, as text) is; None: data."""
    if flag == "seed-prompt":
        return "files" if is_prompt_file(value) else None
    if flag in SAFE_VALUES:
        kind, data = SAFE_VALUES[flag]
        if re.fullmatch(data, value, re.DOTALL):
            return None
        return "code" if value.startswith("class=") else kind
    is_data = flag in DATA or (flag not in FILES and _is_number(value))
    return None if is_data else "files"


def untrusted_flags(settings: Mapping[str, Sequence[str]], kinds: Sequence[Kind] = KINDS) -> str:
    """The settings that name code, hosts or files, as flags that name them again; "" for none."""
    groups: dict[Kind, list[str]] = {kind: [] for kind in kinds}
    for flag, values in settings.items():
        found = {kind_of(flag, value) for value in values}
        if kind := next((kind for kind in kinds if kind in found), None):
            groups[kind].append(shlex.join(as_words(flag, values)))
    named = [f"{kind} ({', '.join(flags)})" for kind, flags in groups.items() if flags]
    return one_line(" and ".join(named))


def check_named(run: Path, settings: Mapping[str, Sequence[str]], *, trusted: bool) -> None:
    """Check that a run folder brings nothing but data; a UserError if it does.

    `settings` are those of flags that the user left out, as text. With --trust-run (`trusted`) say
    what else it brings. Nothing is imported, opened or called before this returns.
    """
    found = untrusted_flags(settings)
    if trusted:
        uses = found or "no code, hosts or files of its own"
        write_stderr(f"trusted: the run {str(run)!r} uses {uses}")
    elif found:
        raise UserError(
            f"the run {str(run)!r} names {found:.1000}: name each by a flag of your own; or, where "
            "you trust whoever made it, say --trust-run"
        )


def is_prompt_file(text: str) -> bool:
    """Whether a prompt, as a flag gives it, is the path of a file."""
    try:
        there = Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or a NUL in it
        return False
    return there or (text.endswith(_PROMPT_FILES) and len(text.split()) == 1)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return value.lower() in {"true", "false"}
    return True
