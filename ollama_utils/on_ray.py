"""`--engine ray`: whole jobs of a command as Ray tasks, on whatever machines the cluster has.

A job opens a connection of its own, to the servers that are dealt to it. What it returns depends on
nothing but its argument, so that one whose worker or machine dies is simply done again.

Annotations of `EngineConfig` are types, not strings: commands read flags off them.
"""

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from cyclopts import Parameter

from ollama_utils.hosts import is_loopback, server_url
from ollama_utils.reply_log import ReplyLog
from records.errors import RunStoppedError, UserError, describe
from records.interrupt import Interrupted
from records.run_folder import ResumableError
from records.terminal import one_line

INSTALL = "pip install 'mutagym[ray]'"
RETRIES = 3
"""How often a job is done again whose worker died."""
END_S = 8.0
"""How long jobs that are cancelled may take to save what they have."""
_STORE_BYTES = 80 * 2**20
"""Ray's object store on this machine, near the least that it takes: what jobs return is small."""
_CONNECT_S, _LOOK_S = 10.0, 0.2

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Where the jobs of a command run."""

    engine: Literal["threads", "ray"] = "threads"
    """Where the jobs run: on threads of this process, or as Ray tasks (extra `ray`)."""
    ray_address: str | None = None
    """The Ray cluster, such as `auto` or `ray-head:6379` [RAY_ADDRESS, else one of this machine
    alone]."""


def task_log(folder: Path, number: int) -> Path:
    """The log, in the run folder, of the replies that the task of this number got."""
    return folder / f"replies-{number}.sqlite"


def task_logs(folder: Path) -> list[Path]:
    """The logs that the tasks of a run have left in its folder."""
    return sorted(folder.glob("replies-*.sqlite"))


def whole_run(replies: ReplyLog, folder: Path) -> dict[str, int]:
    """What all replies of a run cost, with those of its Ray tasks; see `ReplyLog.totals`."""
    totals = Counter(replies.totals())
    for path in task_logs(folder):
        with ReplyLog(path, digests={}) as of_task:
            totals.update(of_task.totals())
    return dict(totals)


@contextlib.contextmanager
def join_ray(address: str | None) -> Iterator[None]:
    """Join a Ray cluster, and leave it at the end; one that this process has joined before stays.

    Args:
        address: see `EngineConfig.ray_address`.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of it
    try:
        import ray
    except ImportError as error:
        missing = f"--engine ray needs Ray, which is not installed here: {INSTALL}"
        raise UserError(missing) from error
    is_ours = not ray.is_initialized()
    if is_ours:
        _init(address or os.environ.get("RAY_ADDRESS"))
    try:
        yield
    finally:
        if is_ours:
            ray.shutdown()


def run_on_ray(
    job: Callable[[tuple[str, ...], Argument], Result],
    arguments: Sequence[Argument],
    hosts: Sequence[str],
    tick: Callable[[], None] = lambda: None,
) -> Generator[Result, None, None]:
    """Run a job for each argument as a Ray task, as many at once as the cluster has CPUs.

    When the generator is closed, what is left of the jobs is cancelled as by Ctrl-C, and killed
    END_S later.

    Args:
        job: is called with the hosts that are dealt to it, and an argument; it can be pickled.
        arguments: one a job.
        hosts: at least one; dealt out among the jobs that run at the same time. A job is on the
            Ray node of its first host's machine, where that is a node with room.
        tick: is called several times a second; what it raises ends all.

    Yields:
        What each job returned, in the order of the arguments.

    Raises:
        Exception: what a job raised, as soon as one does; a UserError as a ResumableError.
        RunStoppedError: a job's worker died every time.
    """
    import ray

    dealt = [tuple(hosts[k :: len(arguments)]) for k in range(min(len(hosts), len(arguments)))]
    places = {group: _placement(group[0]) for group in dealt}
    cpus = int(ray.cluster_resources().get("CPU", 1))
    free = deque(dealt * -(-cpus // max(1, len(dealt))))
    run, job_once = ray.remote(_run), ray.put(job)
    waiting = deque(enumerate(arguments))
    running: dict[Future[Any], tuple[int, tuple[str, ...], Any]] = {}
    done: dict[int, Result] = {}
    try:
        for number in range(len(arguments)):
            while number not in done:
                while waiting and free:
                    place, argument = waiting.popleft()
                    group = free.popleft()
                    options = {"max_retries": RETRIES, "scheduling_strategy": places[group]}
                    task = run.options(name=f"job {place}", **options)
                    reference = task.remote(job_once, group, argument)
                    running[reference.future()] = (place, group, reference)
                tick()
                # Not by `ray.wait`, which swallows what a signal's handler raises.
                for future in wait(running, _LOOK_S, FIRST_COMPLETED).done:
                    place, group, _ = running.pop(future)
                    free.append(group)
                    done[place] = _result(future)
            yield done.pop(number)
    finally:
        for _, _, reference in running.values():
            ray.cancel(reference)
        for future in wait(running, END_S).not_done:
            ray.cancel(running[future][2], force=True)


class Failure:
    """What a job raised, to be pickled: Ray would wrap it, or fail to unpickle it."""

    def __init__(self, error: Exception) -> None:
        from ray import cloudpickle

        self._text, self._trace = describe(error), "".join(traceback.format_exception(error))
        self._pickled = b""
        with contextlib.suppress(Exception):  # whatever hinders that, its text is there
            self._pickled = cloudpickle.dumps((type(error), error.args, vars(error)))

    def error(self) -> Exception:
        """The same error; a RuntimeError with its text where its class is not here."""
        error: Exception = RuntimeError(self._text)
        with contextlib.suppress(Exception):
            kind, args, state = pickle.loads(self._pickled)  # noqa: S301 - of our own worker
            error = kind.__new__(kind, *args)
            error.args = args
            vars(error).update(state)
        error.add_note(f"in a Ray task:\n{self._trace}")
        return error


def _run(
    job: Callable[[tuple[str, ...], Argument], Result], hosts: tuple[str, ...], argument: Argument
) -> Result | Failure:
    """A task: what the job returns or raises; its worker's death is not caught."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return job(hosts, argument)
    except (Interrupted, KeyboardInterrupt) as error:
        if isinstance(error, Interrupted) and error.signum != signal.SIGINT:
            raise SystemExit(error.exit_code) from error  # by whoever ends the worker: done again
        sys.stderr.flush()
        # By `run_on_ray`. A module may be half imported, so no other job is to come here.
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - raised by the driver
        return Failure(error)


def _result(future: Future[Any]) -> Any:  # noqa: ANN401 - any job's
    """What a job returned, or raise what it raised."""
    from ray.exceptions import RayError

    try:
        result = future.result()
    except RayError as error:
        raise RunStoppedError(
            f"a job could not be done on Ray: {one_line(str(error)):.500}"
        ) from error
    if not isinstance(result, Failure):
        return result
    raised = result.error()
    if isinstance(raised, UserError):
        raise ResumableError(str(raised)) from raised
    raise raised


def _placement(host: str) -> Any:  # noqa: ANN401 - Ray's
    """Where a job with this host is to be: on its machine if that is a node, else on any."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if is_loopback(server_url(host)):
        here = ray.get_runtime_context().get_node_id()
        return NodeAffinitySchedulingStrategy(here, soft=False)
    name = urlsplit(server_url(host)).hostname or ""
    addresses = {name}
    with contextlib.suppress(OSError, UnicodeError):  # a name that nobody knows here
        addresses |= {str(found[4][0]) for found in socket.getaddrinfo(name, None)}
    for node in filter(lambda each: each["Alive"], ray.nodes()):
        node_name = node["NodeManagerHostname"].lower()
        if addresses & {node_name, node_name.partition(".")[0], node["NodeManagerAddress"]}:
            return NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
    return "SPREAD"


def _init(address: str | None) -> None:
    """Join a cluster; Ray's own handler of SIGTERM would end the process, and save nothing."""
    import ray

    if address and address.startswith("ray://"):
        raise UserError(
            f"expected a Ray cluster that this machine is a node of, got {address!r}: run "
            "'ray start --address=HEAD:6379' here, and pass HEAD:6379 or 'auto'"
        )
    local = {"object_store_memory": _STORE_BYTES, "include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address and ":" in address:  # else Ray tries for minutes
            name, _, port = address.rpartition(":")
            socket.create_connection((name, int(port)), _CONNECT_S).close()
        where = {"address": address} if address else {"address": "local", **local}
        ray.init(log_to_driver=True, logging_level="ERROR", **where)
    except (OSError, RuntimeError, ValueError) as error:
        cluster = repr(address) if address else "of this machine"
        why = one_line(str(error))
        raise UserError(f"the Ray cluster {cluster} cannot be joined: {why}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
