"""Makes wrappers by name."""

from __future__ import annotations

from collections.abc import Callable

from evaluation.wrappers.auto import AutoWrapper, Ways
from evaluation.wrappers.batch import BatchWrapper
from evaluation.wrappers.plain import SerialWrapper, ThreadWrapper
from evaluation.wrappers.processes import ProcessWrapper
from evaluation.wrappers.runners import ThreadPool, in_turn
from evaluation.wrappers.torch_blocks import TorchWrapper
from evaluation.wrappers.wrapper import Wrapper


def make(name: str, jobs: int, timeout_s: float | None, report: Callable[[str], None]) -> Wrapper:
    """The wrapper of this name: see `wrapper.make_wrapper`, which checks the arguments."""
    match name:
        case "serial":
            return SerialWrapper(in_turn(jobs, timeout_s))
        case "thread":
            return ThreadWrapper(ThreadPool(jobs, timeout_s))
        case "process":
            return ProcessWrapper(jobs, timeout_s)
        case "batch":
            return BatchWrapper(in_turn(jobs, timeout_s))
        case "torch":
            return TorchWrapper(timeout_s)
    pool = ThreadPool(jobs, timeout_s)
    turn = pool if timeout_s else in_turn(jobs, timeout_s)
    ways = Ways(
        serial=SerialWrapper(turn),
        thread=ThreadWrapper(pool),
        process=ProcessWrapper(jobs, timeout_s),
        batch=BatchWrapper(turn),
        torch=TorchWrapper(timeout_s),
    )
    return AutoWrapper(ways, jobs, report)
