"""Errors that a command shows as one line."""

from __future__ import annotations


class UserError(Exception):
    """The user can mend it: what was expected, what came, what to do. Exit code 2."""


class RunStoppedError(Exception):
    """The run stopped itself, saved: why. Exit code 1."""
