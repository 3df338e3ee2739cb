"""The traceback of a policy's error: the same text whatever way the policy was stepped."""

from __future__ import annotations

import traceback

_OURS = "evaluation.wrappers."
_HEAD = "Traceback (most recent call last):\n"


class RemoteTraceback(Exception):  # noqa: N818 - it is shown as the cause of an error
    """The traceback of an error in another process; its one argument is the text."""

    def __str__(self) -> str:
        """The text between quotation marks."""
        return f'in another process:\n"""\n{self.args[0]}"""'


def error_line(trace: str) -> str:
    """What a traceback ends with, in one line: the error's class and the first line of its message."""
    *_, told = trace.rpartition(_HEAD)
    lines = [line for line in told.splitlines() if line.strip()]
    return next((line for line in lines if not line[0].isspace()), "no error told")


def policy_traceback(error: BaseException, caught_in: str) -> str:
    """The traceback of what a policy raised, without the frames at its head that are not the policy's.

    Where all frames are of those, as in an overrun deadline, what remains is the error alone.

    Args:
        error: what was raised.
        caught_in: the name of the module that caught it; its frames are left out, as those of the wrappers.
    """
    if isinstance(error.__cause__, RemoteTraceback):
        text: str = error.__cause__.args[0]
        return text
    trace = error.__traceback__
    while trace and f"{trace.tb_frame.f_globals.get('__name__')}".startswith((caught_in, _OURS)):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
