"""Steps the policies of an episode's agents: one after another, or side by side in five ways.

    serial    the agents of an episode in turn
    thread    each agent on a thread of its own: for policies that wait, or that leave the interpreter's lock
    process   policies live in as many processes as jobs or CPUs, whichever is less; each stays in one of them
    batch     one call of `step_batch` for the agents of an episode that have the same policy
    torch     one forward pass, of 16 rows a block, for the agents of all episodes that are waiting
    auto      torch or batch where a policy offers it; else its first steps are measured in place, and what
              they cost decides between thread, process and serial

Each gives the same actions. A step is part of its episode's plan (`ollama_utils.plans`): agents that are
stepped by one call make one item, so the runner of the plans says how many are stepped at once.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from evaluation.errors import (
    PolicyBusyError,
    PolicyError,
    PolicyTimeoutError,
    StepperError,
    WorkerLoadError,
    overrun,
)
from evaluation.policies.instance import Outcome, PolicyInstance, block_scores, instance_or_error
from evaluation.policies.policy import PolicySource, View
from evaluation.policy_process import PolicyProcess, RemotePolicy
from ollama_utils.plans import start_thread
from records.errors import nearest

if TYPE_CHECKING:
    import torch

StepperName = Literal["serial", "auto", "thread", "process", "batch", "torch"]
Pick = Literal["serial", "thread", "process"]
T = TypeVar("T")
StepPlan = Generator[Sequence[Callable[[], Any]], Sequence[Any], list[Outcome]]
"""Yields calls that may go side by side, is sent what they returned, and returns the outcomes of a step."""

IN_TURN = "in turn"
"""The group of the agents that are stepped one after another."""
MEASURED_STEPS = 3
"""Steps of a policy that `auto` measures before it picks a way."""
WAIT_S = 0.005
"""A policy that waits as long a step, and twice as long as it computes, steps on threads."""
HEAVY_S = 0.005
"""One that computes as long a step goes to a process; a step there costs under a millisecond more."""
_SCHEDULE = Path("/proc/thread-self/schedstat")
"""Where Linux counts how long a thread waited for a CPU."""


def make_stepper(
    name: str, *, jobs: int, action_timeout_ms: float | None, report: Callable[[str], None]
) -> PolicyStepper:
    """The way of this name to step policies.

    Args:
        name: which one.
        jobs: how many steps may be under way at once, at least 1.
        action_timeout_ms: milliseconds that a step may take, counted from when the policy begins with it;
            with batch and torch, the whole call. Making an instance does not count. None: no limit.
        report: is called with a line on what `auto` picks, and why; the line holds measured times.

    Raises:
        ValueError: there is no such way, or a number is out of range.
    """
    if name not in get_args(StepperName):
        raise ValueError(f"unknown policy wrapper {name!r}; {nearest(name, get_args(StepperName))}")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs!r}")
    if action_timeout_ms is not None and not 0 < action_timeout_ms < math.inf:
        raise ValueError(
            f"the action timeout must be a finite number of ms over 0, got {action_timeout_ms!r}"
        )
    timeout_s = None if action_timeout_ms is None else action_timeout_ms / 1000
    return PolicyStepper(cast("StepperName", name), jobs, timeout_s, Picks(jobs, report))


class PolicyStepper:
    """Steps policies in one way, as `make_stepper` says: one for an evaluation, shared by its threads."""

    def __init__(self, name: StepperName, jobs: int, timeout_s: float | None, picks: Picks) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self.picks = picks
        self._passes = ForwardPasses(timeout_s)
        count = min(jobs, count_cpus()) if name in {"process", "auto"} else 0
        self._processes = [PolicyProcess(timeout_s) for _ in range(count)]
        self._lock = threading.Lock()

    def begin(self, sources: Sequence[PolicySource], seeds: Sequence[int]) -> EpisodePolicies:
        """The policies of a new episode; one that cannot be made fails in each step.

        Args:
            sources: (agents,), which policy serves each agent; the same object for the same policy.
            seeds: (agents,), at least 0: each agent's chance.

        Raises:
            StepperError: one of the policies cannot be stepped in this way.
        """
        shared: dict[int, AgentPolicy] = {}
        agents: list[AgentPolicy] = []
        for source, seed in zip(sources, seeds, strict=True):
            agent = shared.get(id(source)) or self._agent(source, seed)
            if isinstance(agent, BatchAgents):
                shared[id(source)] = agent
            agents.append(agent)
        return EpisodePolicies(agents)

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for process in self._processes:
            process.close()

    def remote(self, source: PolicySource, seed: int, instance: PolicyInstance | None = None) -> RemoteAgent:
        """A policy in the process with the fewest; see `RemotePolicy`.

        Raises:
            StepperError: it cannot be pickled.
        """
        policy = RemotePolicy(source, seed, instance)
        with self._lock:
            process = min(self._processes, key=lambda each: each.residents)
            process.residents += 1
        return RemoteAgent(process, policy)

    def _agent(self, source: PolicySource, seed: int) -> AgentPolicy:
        if self.name == "process":
            return self.remote(source, seed)
        if self.name == "auto" and self.picks.pick_of(source.name) == "process":
            return AutoAgent(self, source, seed, None)
        made = instance_or_error(source, seed)
        if isinstance(made, Exception):
            return FailedAgent(made)
        if self.name in {"serial", "thread"}:
            return LocalAgent(made, self.timeout_s, group=IN_TURN if self.name == "serial" else None)
        return self._agent_by_offer(source, seed, made)

    def _agent_by_offer(self, source: PolicySource, seed: int, instance: PolicyInstance) -> AgentPolicy:
        """Batch, torch and auto look at what the policy offers."""
        if instance.network is not None:
            self._say(source, "torch: it has a network")
            return NetworkAgent(instance, self._passes)
        if instance.can_batch and self.name != "torch":
            self._say(source, "batch: it has step_batch")
            return BatchAgents(instance, self.timeout_s)
        if self.name == "auto":
            return AutoAgent(self, source, seed, instance)
        missing = "step_batch" if self.name == "batch" else "torch network"
        raise StepperError(
            f"policy {source.name!r} has no {missing}: --policy-wrapper {self.name} cannot serve it"
        )

    def _say(self, source: PolicySource, what: str) -> None:
        if self.name == "auto":
            self.picks.say(source.name, what)


class EpisodePolicies:
    """The policies of one episode's agents.

    Args:
        agents: (agents,), the policy of each.
    """

    def __init__(self, agents: Sequence[AgentPolicy]) -> None:
        self._agents = agents

    def step(self, views: Sequence[View]) -> StepPlan:
        """The plan of one step of some agents; returns their outcomes (views,)."""
        groups: defaultdict[object, list[View]] = defaultdict(list)
        for view in views:
            groups[self._agents[view.agent].group].append(view)
        found = yield [partial(self._step_group, group) for group in groups.values()]
        outcomes = {
            view.agent: outcome
            for group, of_group in zip(groups.values(), found, strict=True)
            for view, outcome in zip(group, of_group, strict=True)
        }
        return [outcomes[view.agent] for view in views]

    def close(self) -> None:
        """The episode is over: drop its policies. Waits for nothing."""
        for agent in self._agents:
            agent.close()

    def _step_group(self, views: Sequence[View]) -> list[Outcome]:
        agents = [self._agents[view.agent] for view in views]
        return agents[0].step_group(agents, views)


class AgentPolicy:
    """The policy of one agent in one episode."""

    @property
    def group(self) -> object:
        """Agents with the same one are stepped by one call."""
        return self

    def step(self, view: View) -> Outcome:
        """The policy's action, or what stands in its place."""
        return self.step_group([self], [view])[0]

    def step_group(self, agents: Sequence[AgentPolicy], views: Sequence[View]) -> list[Outcome]:
        """The outcomes (agents,) of the agents of a group, this one among them."""
        return [agent.step(view) for agent, view in zip(agents, views, strict=True)]

    def close(self) -> None:
        """The episode is over."""


class FailedAgent(AgentPolicy):
    """A policy that could not be made.

    Args:
        error: why.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def step(self, view: View) -> Outcome:  # noqa: ARG002 - nobody sees it
        """The error."""
        return self._error


class InstanceAgent(AgentPolicy):
    """An instance in this process, which does one call at a time under the deadline.

    Args:
        instance: the instance.
        timeout_s: the deadline of a call; None: none.
    """

    def __init__(self, instance: PolicyInstance, timeout_s: float | None) -> None:
        self.instance = instance
        self._timeout_s = timeout_s
        self._busy = threading.Lock()
        """Held during a call: one that overran its deadline may still be under way."""

    def call(self, work: Callable[[], T]) -> T | PolicyError:
        """What the work returns; a PolicyBusyError where an earlier call has not ended."""
        return within(self._timeout_s, f"policy {self.instance.name!r}", partial(self._alone, work))

    def _alone(self, work: Callable[[], T]) -> T | PolicyBusyError:
        if not self._busy.acquire(blocking=False):
            return PolicyBusyError(
                f"policy {self.instance.name!r} has not ended an earlier step; ask for one action at a time"
            )
        try:
            return work()
        finally:
            self._busy.release()


class LocalAgent(InstanceAgent):
    """An instance that serves one agent.

    Args:
        instance: the instance.
        timeout_s: the deadline of a step; None: none.
        group: agents with the same one are stepped in turn; None: it steps beside the others.
    """

    def __init__(self, instance: PolicyInstance, timeout_s: float | None, group: object = None) -> None:
        super().__init__(instance, timeout_s)
        self._group = group

    @property
    def group(self) -> object:
        """Agents with the same one are stepped by one call."""
        return self._group or self

    def step(self, view: View) -> Outcome:
        """The policy's action."""
        return self.call(partial(self.instance.step, view))

    def measured_step(self, view: View) -> tuple[Outcome, Cost]:
        """The same, and what it cost.

        Of a step that overran its deadline only that its caller waited is known.
        """
        step = partial(measured, partial(self.instance.step, view))
        found, cost_of_waiting = measured(partial(self.call, step))
        return (found, cost_of_waiting) if isinstance(found, PolicyError) else found


class RemoteAgent(AgentPolicy):
    """A policy in a process.

    Args:
        process: the process.
        policy: the policy there.
    """

    def __init__(self, process: PolicyProcess, policy: RemotePolicy) -> None:
        self._process = process
        self._policy = policy

    def step(self, view: View) -> Outcome:
        """The policy's action."""
        return self._process.step(self._policy, view)

    def close(self) -> None:
        """Drop the policy."""
        self._process.drop(self._policy)


class BatchAgents(InstanceAgent):
    """An instance with `step_batch` that serves all agents of an episode that have its policy."""

    def step_group(self, agents: Sequence[AgentPolicy], views: Sequence[View]) -> list[Outcome]:  # noqa: ARG002 - all of them are this one
        """The outcomes of one call of `step_batch`; an error of it is every agent's."""
        found = self.call(partial(self.instance.step_batch, views))
        return [found] * len(views) if isinstance(found, PolicyError) else found


class NetworkAgent(AgentPolicy):
    """An instance with a network, whose views go into one forward pass with those of other agents.

    Args:
        instance: the instance.
        passes: where views are gathered.
    """

    def __init__(self, instance: PolicyInstance, passes: ForwardPasses) -> None:
        self.instance = instance
        self._passes = passes

    @property
    def group(self) -> object:
        """The passes, which all agents with a network share."""
        return self._passes

    def step_group(self, agents: Sequence[AgentPolicy], views: Sequence[View]) -> list[Outcome]:
        """The outcomes (agents,), all of one pass."""
        instances = [agent.instance for agent in agents if isinstance(agent, NetworkAgent)]
        return self._passes.step([Row(*each) for each in zip(instances, views, strict=True)])


@dataclass(eq=False)
class Row:
    """A view that waits for a forward pass."""

    instance: PolicyInstance
    view: View
    outcome: Outcome | None = None
    """What came of it, once the pass is over."""


class ForwardPasses:
    """Forwards together all views that came in while the pass before was under way; then policies choose.

    Args:
        timeout_s: the deadline of a pass and the choices that follow from it; None: none.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._waiting: list[Row] = []
        self._turn = threading.Lock()
        """Held during a pass. Who gets it finds its rows done, or takes them with all others that wait."""

    def step(self, rows: Sequence[Row]) -> list[Outcome]:
        """The outcome of each row."""
        with self._lock:
            self._waiting.extend(rows)
        with self._turn:
            with self._lock:
                taken, self._waiting = self._waiting, []
            if taken:
                work = partial(_pass, taken)
                found = within(self._timeout_s, "the forward pass of policies", work)
                outcomes = [found] * len(taken) if isinstance(found, Exception) else found
                for row, outcome in zip(taken, outcomes, strict=True):
                    row.outcome = outcome
        return [cast("Outcome", row.outcome) for row in rows]


def _pass(rows: Sequence[Row]) -> list[Outcome]:
    """The outcomes of rows: those with the same network, and observations of one shape, go together."""
    alike: defaultdict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        alike[id(row.instance.network), row.view.observation.shape].append(place)
    outcomes: dict[int, Outcome] = {}
    for places in alike.values():
        for place, scores in zip(places, _scores([rows[place] for place in places]), strict=True):
            row = rows[place]
            outcomes[place] = (
                scores if isinstance(scores, Exception) else row.instance.choose(row.view, scores)
            )
    return [outcomes[place] for place in range(len(rows))]


def _scores(rows: Sequence[Row]) -> Sequence[NDArray[np.float32] | Exception]:
    """The scores of each row; where the pass fails, each row goes alone, so that it spoils no other's."""
    network = cast("torch.nn.Module", rows[0].instance.network)
    try:
        return block_scores(network, [(row.instance.block_row, row.view.observation) for row in rows])
    except Exception as error:  # noqa: BLE001 - it belongs to the row that caused it
        return [error] if len(rows) == 1 else [_scores([row])[0] for row in rows]


class AutoAgent(AgentPolicy):
    """Steps a policy in place until its way is picked; then moves it there, once.

    Args:
        stepper: what it is part of.
        source: what makes the policy.
        seed: what it is made with.
        instance: the instance; None: it is made where it steps.
    """

    def __init__(
        self, stepper: PolicyStepper, source: PolicySource, seed: int, instance: PolicyInstance | None
    ) -> None:
        self._stepper = stepper
        self._picks = stepper.picks
        self._source = source
        self._seed = seed
        self._here = LocalAgent(instance, stepper.timeout_s) if instance else None
        self._settled: AgentPolicy | None = None
        """Where it steps for good."""

    @property
    def group(self) -> object:
        """In turn with the others once that is picked; beside them until then."""
        return IN_TURN if self._picks.pick_of(self._source.name) == "serial" else self

    def step(self, view: View) -> Outcome:
        """The policy's action."""
        if self._here and self._picks.pick_of(self._source.name) is None:
            with self._picks.measuring:
                if self._picks.pick_of(self._source.name) is None:
                    return self._measured_step(self._here, view)
        self._settled = self._settled or self._moved()
        outcome = self._settled.step(view)
        if not isinstance(outcome, WorkerLoadError):
            return outcome
        self._settled.close()  # the process could not unpickle it, and has changed nothing
        self._picks.fall_back(self._source.name, outcome)
        self._settled = self._local()
        return self._settled.step(view)

    def close(self) -> None:
        """Close what it moved to."""
        if self._settled is not None:
            self._settled.close()

    def _measured_step(self, here: LocalAgent, view: View) -> Outcome:
        outcome, cost = here.measured_step(view)
        if isinstance(outcome, PolicyTimeoutError):
            self._settled = here  # the step may be under way still, so the instance cannot move
        self._picks.note(self._source.name, cost)  # steps that fail cost time, too
        return outcome

    def _moved(self) -> AgentPolicy:
        if self._picks.pick_of(self._source.name) == "process":
            try:
                instance = self._here.instance if self._here else None
                return self._stepper.remote(self._source, self._seed, instance)
            except StepperError as error:
                self._picks.fall_back(self._source.name, error)
        return self._local()

    def _local(self) -> AgentPolicy:
        """The policy in this process, made if there is none yet."""
        if self._here:
            return self._here
        made = instance_or_error(self._source, self._seed)
        if isinstance(made, Exception):
            return FailedAgent(made)
        return LocalAgent(made, self._stepper.timeout_s)


class Picks:
    """How `auto` steps each policy, by what its first steps cost.

    Args:
        jobs: how many steps may be under way at once.
        report: is called with each pick, and each fallback, once for each policy's name.
    """

    def __init__(self, jobs: int, report: Callable[[str], None]) -> None:
        self._jobs = jobs
        self._report = report
        self._costs: defaultdict[str, list[Cost]] = defaultdict(list)
        self._picks: dict[str, Pick] = {}
        self._said: set[str] = set()
        self._lock = threading.RLock()
        self.measuring = threading.Lock()
        """Held while a step is measured: beside others each would seem to wait."""

    def pick_of(self, name: str) -> Pick | None:
        """How a policy is to be stepped; None while that is open."""
        return self._picks.get(name)

    def note(self, name: str, cost: Cost) -> None:
        """Note what a step of a policy cost; the last of the first few decides."""
        with self._lock:
            self._costs[name].append(cost)
            if len(self._costs[name]) == MEASURED_STEPS:
                pick, why = pick_way(self._costs[name], jobs=self._jobs, cpus=count_cpus())
                self._picks[name] = pick
                self.say(name, f"{pick}: {why}")

    def fall_back(self, name: str, why: Exception) -> None:
        """Step a policy serially from now on, for a process cannot have it."""
        with self._lock:
            self._picks[name] = "serial"
            self.say(name, f"serial, not process: {why}")

    def say(self, name: str, what: str) -> None:
        """Report how a policy steps, once."""
        line = f"policy {name!r} steps by {what}"
        with self._lock:
            if line not in self._said:
                self._said.add(line)
                self._report(line)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one step took."""

    wait_s: float
    """Seconds in which it neither computed nor waited for a CPU."""
    cpu_s: float
    """CPU time of the thread that it ran on."""


def measured(work: Callable[[], T]) -> tuple[T, Cost]:
    """What the work returns, and what it took on this thread."""
    began_s = _clocks_s()
    result = work()
    wall_s, cpu_s, queued_s = (now - began for now, began in zip(_clocks_s(), began_s, strict=True))
    return result, Cost(wait_s=wall_s - cpu_s - queued_s, cpu_s=cpu_s)


def pick_way(costs: Sequence[Cost], *, jobs: int, cpus: int) -> tuple[Pick, str]:
    """The way that fits a policy whose steps cost so much, and why.

    The mean shows waiting, where most steps may find their answer known; the median shows computing, where
    the first may import something.

    Args:
        costs: of the first steps.
        jobs: how many steps may be under way at once.
        cpus: how many CPUs there are.
    """
    cpu_s = median(cost.cpu_s for cost in costs)
    wait_s = mean(cost.wait_s for cost in costs)
    a_step = f"{max(wait_s, 0) * 1000:.1f} ms of waiting and {cpu_s * 1000:.1f} ms of CPU a step"
    if jobs == 1:
        return "serial", f"there is one job: {a_step}"
    if wait_s >= max(WAIT_S, 2 * cpu_s):
        return "thread", f"it waits: {a_step}"
    if cpu_s < HEAVY_S:
        return "serial", f"it is light: {a_step}"
    if cpus == 1:
        return "serial", f"it computes, but there is one CPU: {a_step}"
    return "process", f"it computes: {a_step}"


def count_cpus() -> int:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def within(timeout_s: float | None, what: str, work: Callable[[], T]) -> T | PolicyTimeoutError:
    """What the work returns; with a deadline it is done on a thread that is left alone once it is late.

    Args:
        timeout_s: the deadline; None: the work is done on the caller's thread, where nothing can stop it.
        what: what works, for the message.
        work: the work.

    Raises:
        BaseException: whatever the work raises.
    """
    if timeout_s is None:
        return work()
    results: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def job() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            results.put((None, error))

    start_thread(job)
    try:
        result, error = results.get(timeout=timeout_s)
    except Empty:
        return overrun(what, timeout_s)
    if error is not None:
        raise error
    return cast("T", result)


def _clocks_s() -> tuple[float, float, float]:
    """The time, this thread's CPU time, and how long it was ready to run and waited for a CPU, in seconds.

    The last is 0 where the system does not say.
    """
    try:
        queued_s = int(_SCHEDULE.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        queued_s = 0.0
    return time.perf_counter(), time.thread_time(), queued_s
