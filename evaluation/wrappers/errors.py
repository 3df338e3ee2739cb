"""What can go wrong while policies are stepped.

ValueError
└── WrapperError              a wrapper asked for by name cannot serve a policy

PolicyError
├── PolicyTimeoutError        a step overran its deadline
├── PolicyActionError         the action is no mutator's number
├── PolicyExitError           the policy asked for the program's end
├── PolicyBusyError           a step was asked for while an earlier one was under way
├── WorkerDiedError           the process that a policy lived in died in its step
├── WorkerLoadError           a policy cannot be unpickled in a process
├── RemotePolicyError         a policy raised in its process what cannot be pickled
└── WrapperClosedError        the evaluation ended before the step was done

Whatever else a policy raises reaches `Pending.result()` as it is.
"""

from __future__ import annotations


class WrapperError(ValueError):
    """A wrapper asked for by name cannot serve a policy: which one, and why."""


class PolicyError(Exception):
    """A policy's step failed for a reason that is not the policy's own exception."""


class PolicyTimeoutError(PolicyError):
    """A step overran its deadline. The message holds the limit, and no time that was measured."""


class PolicyActionError(PolicyError):
    """What a policy gave is no mutator's number."""


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


class WrapperClosedError(PolicyError):
    """The wrapper was closed before the step was done."""
