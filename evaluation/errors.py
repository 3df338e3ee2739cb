"""What can go wrong while policies are stepped, and how it is shown: in the same words however they step.

ValueError
└── StepperError              a way to step that was asked for by name cannot serve a policy

PolicyError
├── PolicyTimeoutError        a step overran its deadline
├── PolicyActionError         the action is no mutator's number
├── PolicyExitError           the policy raised SystemExit
├── PolicyBusyError           a step was asked for while an earlier one was under way
├── WorkerDiedError           the process that a policy lived in died in its step
├── WorkerLoadError           a policy cannot be unpickled in a process
├── RemotePolicyError         a policy raised in its process what cannot be pickled
└── StepperClosedError        the evaluation ended before the step was done
"""

from __future__ import annotations

import traceback

_STEPPING = (
    "evaluation.policies.instance",
    "evaluation.policy_process",
    "evaluation.stepping",
    "ollama_utils.plans",
)
"""Modules whose frames at the head of a traceback are not the policy's."""
_HEAD = "Traceback (most recent call last):\n"


class StepperError(ValueError):
    """A way to step that was asked for by name cannot serve a policy: which one, and why."""


class PolicyError(Exception):
    """A policy's step failed for a reason that is not the policy's own exception."""


class PolicyTimeoutError(PolicyError):
    """A step overran its deadline. The message holds the limit, and no time that was measured."""


class PolicyActionError(PolicyError):
    """What a policy returned is no mutator's number."""


class PolicyExitError(PolicyError):
    """A policy raised SystemExit."""


class PolicyBusyError(PolicyError):
    """A policy was to step while it had not ended an earlier step."""


class WorkerDiedError(PolicyError):
    """The process that a policy lived in died during its step."""


class WorkerLoadError(PolicyError):
    """A policy that was pickled here cannot be unpickled in a process."""


class RemotePolicyError(PolicyError):
    """Stands for an exception of a policy in a process that cannot be pickled; the traceback is its cause."""


class StepperClosedError(PolicyError):
    """The evaluation ended before the step was done."""


class RemoteTraceback(Exception):  # noqa: N818 - it is shown as the cause of an error
    """The traceback of an error in another process; its one argument is the text."""

    def __str__(self) -> str:
        """The text between quotation marks."""
        return f'in another process:\n"""\n{self.args[0]}"""'


def overrun(what: str, timeout_s: float) -> PolicyTimeoutError:
    """The error of a step that overran its deadline."""
    return PolicyTimeoutError(f"{what} took longer than {timeout_s * 1000:g} ms over one step")


def error_line(trace: str) -> str:
    """What a traceback ends with, in one line: the error's class and the first line of its message."""
    *_, last = trace.rpartition(_HEAD)
    lines = [line for line in last.splitlines() if line.strip()]
    return next((line for line in lines if not line[0].isspace()), "no error in the traceback")


def policy_traceback(error: BaseException) -> str:
    """The traceback of what a policy raised, without the frames at its head that are not the policy's.

    Where all frames are of those, as in an overrun deadline, what remains is the error alone.
    """
    if isinstance(error.__cause__, RemoteTraceback):
        text: str = error.__cause__.args[0]
        return text
    trace = error.__traceback__
    while trace and trace.tb_frame.f_globals.get("__name__") in _STEPPING:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
