"""System prompts that a user brings, as text or in files."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from train.errors import UserError
from train.settings import absolute

SUFFIXES = (".txt", ".md", ".prompt")
"""A name with one of these endings and no blank is a file, whether it is there or not."""


def located_prompt(text: str) -> str:
    """The whole path of a prompt's file; a prompt that is a text as it is."""
    return str(absolute(text)) if _is_file(text) else text


def read_prompt(text: str, flag: str) -> str:
    """The prompt itself.

    Args:
        text: the prompt, or the path of its file.
        flag: is named in the error.

    Raises:
        UserError: the file cannot be read, or there is nothing in it.
    """
    return read_prompt_file(Path(text), flag) if _is_file(text) else _checked(text.strip(), flag, "a text")


def read_prompt_file(path: Path, flag: str) -> str:
    """The one prompt of a file.

    Raises:
        UserError: it cannot be read, or there is nothing in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{flag} names {str(path)!r}; expected a file with a prompt, in UTF-8: {why}"
        ) from error
    return _checked(text.strip(), flag, repr(str(path)))


def prompt_prints(prompts: dict[str, str]) -> dict[str, str]:
    """What stands for prompts, by their names."""
    return {f"prompt {name}": sha256(text.encode()).hexdigest() for name, text in prompts.items()}


def _is_file(text: str) -> bool:
    try:
        there = Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or a NUL in it
        return False
    return there or (text.endswith(SUFFIXES) and len(text.split()) == 1)


def _checked(text: str, flag: str, what: str) -> str:
    if not text:
        raise UserError(f"{flag} is given {what} with nothing in it; expected a system prompt")
    return text
