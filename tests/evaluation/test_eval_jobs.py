"""The budget of an evaluation, and the order within an episode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

import numpy as np
import pytest

from envs.episode import Ask, Embed, Judge, Reply, Request, Rewrite, Rules
from evaluation.episodes import EpisodeRun, Ground
from evaluation.jobs import Jobs, play
from evaluation.policies.policy import View
from mutators.registry import load_mutators
from ollama_utils.types import Completion
from scorers.reward import Verdict

WAIT_S = 30.0


def test_as_many_tasks_are_at_work_as_there_are_jobs_and_never_more() -> None:
    count, together = 4, threading.Barrier(4)
    at_work, most, lock, done = 0, 0, threading.Lock(), threading.Event()

    def task() -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        together.wait(WAIT_S)  # passed by four at a time alone
        with lock:
            at_work -= 1

    with Jobs(count) as jobs:
        jobs.together([task] * 12, lambda _: done.set())
        assert done.wait(WAIT_S)
        assert jobs.failure is None
    assert most == count


def test_results_come_in_the_order_of_the_tasks_whatever_ends_first() -> None:
    second_ended, told = threading.Event(), SimpleQueue[list[int]]()

    def first() -> int:
        assert second_ended.wait(WAIT_S)
        return 1

    def second() -> int:
        second_ended.set()
        return 2

    with Jobs(2) as jobs:
        jobs.together([first, second], told.put)
        assert told.get(timeout=WAIT_S) == [1, 2]


class Thing:
    """Something to be played, which ends when it is told to."""

    def __init__(self, number: int, opened: list[int], jobs: Jobs, gate: threading.Event) -> None:
        self.number = number
        self.opened = opened
        self.jobs = jobs
        self.gate = gate

    def start(self, ended: Callable[[], None]) -> None:
        self.opened.append(self.number)
        self.jobs.together([lambda: self.gate.wait(WAIT_S)], lambda _: ended())


def test_things_are_opened_in_their_order_as_many_as_there_are_jobs_and_told_of_in_their_order() -> None:
    opened: list[int] = []
    gates = [threading.Event() for _ in range(5)]
    with Jobs(2) as jobs:
        makers = [partial(Thing, k, opened, jobs, gate) for k, gate in enumerate(gates)]
        gates[1].set()  # the second ends first, and lets the third begin
        gates[2].set()
        told = play(makers, jobs, lambda ended: gates[0].set() if ended >= 2 else None)
        assert next(told).number == 0
        for gate in gates:
            gate.set()
        assert [thing.number for thing in told] == [1, 2, 3, 4]
    assert opened == [0, 1, 2, 3, 4]


def test_an_error_in_a_task_ends_the_play_with_it() -> None:
    class Broken(Thing):
        def start(self, ended: Callable[[], None]) -> None:  # noqa: ARG002 - it never ends
            raise RuntimeError("a bug")

    with Jobs(2) as jobs, pytest.raises(RuntimeError, match="a bug"):
        list(play([partial(Broken, 0, [], jobs, threading.Event())], jobs))


class Answers:
    """A world in which a second rewording is answered, and which notes each step that begins."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def __call__(self, requests: Sequence[Request]) -> list[Reply]:
        return [self.reply(request) for request in requests]

    def reply(self, request: Request) -> Reply:
        match request:
            case Rewrite():
                self.events.append("step")
                return Completion(text=f"{request.query}!", attempts=0)
            case Ask():
                return Completion(text=request.query)
            case Judge():
                success = request.query.count("!") == 2
                return Verdict(outcome="answered" if success else "refused", success=success, reward=success)
            case Embed():
                return np.ones(1, np.float32)


class Seats:
    """A team that chooses the first mutator, and notes when it is asked and when an answer is fetched."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def submit(self, agent: int, view: View) -> Seats:
        assert view.agent == agent
        self.events.append("submit")
        return self

    def result(self) -> int:
        self.events.append("result")
        return 0

    def close(self) -> None:
        self.events.append("close")


@pytest.mark.parametrize("jobs_count", [1, 8])
def test_all_agents_are_asked_then_gathered_before_any_plan_goes_on(jobs_count: int) -> None:
    events: list[str] = []
    rules = Rules(mutators=load_mutators(("noop",)), max_steps=5, intent_threshold=0)
    ground = Ground(rules=rules, answer=Answers(events), seed=0)
    with Jobs(jobs_count) as jobs:
        make = partial(EpisodeRun, ground, "q", 0, ["p"] * 3, lambda: Seats(events), jobs)
        (episode,) = play([make], jobs)
    row = ["submit"] * 3 + ["result"] * 3 + ["step"] * 3
    assert events == [*row, *row, "close"]
    told = episode.result()
    assert [agent["actions"] for agent in told["agents"]] == [["noop", "noop"]] * 3
    assert all(agent["success"] for agent in told["agents"])
