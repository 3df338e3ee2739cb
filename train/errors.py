"""An error that the user can mend: shown as one line, exit code 2."""

from __future__ import annotations


class UserError(Exception):
    """What was expected, what came, what to do: in one line."""


class RunStoppedError(Exception):
    """The run stopped itself, saved: the line says why. Exit code 1."""
