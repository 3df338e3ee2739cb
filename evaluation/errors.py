"""What can go wrong while policies are stepped, and how it is written into the results."""

from __future__ import annotations

import traceback

_OUR_MODULES = ("evaluation.", "ollama_utils.threads", "concurrent.futures.")
"""Modules whose frames at the head of a traceback are not the policy's."""
_HEAD = "Traceback (most recent call last):\n"


class StepperError(ValueError):
    """A policy cannot be made or stepped in this way, or the evaluation has ended."""


class PolicyError(Exception):
    """A step overran its deadline, gave no mutator's number, exited, or ended its process."""


class RemotePolicyError(PolicyError):
    """A policy raised in its process; the one argument is the traceback there."""


def timeout_error(name: str, timeout_ms: float) -> PolicyError:
    """The error of a step of the policy `name` that overran its deadline."""
    return PolicyError(f"policy {name!r} took longer than {timeout_ms:g} ms over one step")


def raised_line(trace: str) -> str:
    """What a traceback ends with: the error's class and the first line of its message."""
    *_, last = trace.rpartition(_HEAD)
    lines = [line for line in last.splitlines() if line.strip()]
    return next((line for line in lines if not line[0].isspace()), "no error in the traceback")


def policy_traceback(error: BaseException) -> str:
    """The traceback of what a policy raised, from the policy's own first frame on, if any."""
    if isinstance(error, RemotePolicyError):
        return str(error)
    trace = error.__traceback__
    while trace and str(trace.tb_frame.f_globals.get("__name__")).startswith(_OUR_MODULES):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
