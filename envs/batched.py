"""N query-mutation environments behind Gymnasium's VectorEnv API, their model calls made together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envs.answering import Answerer
from envs.episode import EpisodePlan, Request
from envs.lanes import LAST_STEP_S, Arrivals, Batch, Job, LaneTask, LaneVectorEnv, StepResult
from envs.query_mutation import EnvConfig, QueryMutationEnv
from ollama_utils.plans import Plan, PlanRunner, play_plan, stop_at_exit

Observations = NDArray[np.float32]
Schedule = Literal["sequential", "phased", "lanes"]
SCHEDULES: tuple[Schedule, ...] = ("sequential", "phased", "lanes")
PHASE_WORKERS = 8


class BatchedQueryMutationEnv(LaneVectorEnv):
    """A vector of `QueryMutationEnv` (autoreset mode SAME_STEP).

    A step is a plan, and `schedule` says how the plans are played. In `lanes` each lane goes its own way, and
    `send` and `recv` step some of them while others wait for their models; `phased` plays all plans in
    lockstep, so that all rewrites come first, then all questions, then all verdicts; `sequential` plays one
    plan after another on the caller's thread. All give the same results, row by row, as the single
    environments do.

    `max_workers` is the number of threads of a phase in `phased` (8 by default), and in `lanes` the most
    requests of this environment under way at once (None: one a lane).

    Pass ready environments that share their models and parts, or a config with `num_envs` and what
    `QueryMutationEnv` takes by keyword. `close()` leaves the dispatcher and the encoder open: they belong
    to whoever made them.

    Besides what every `LaneVectorEnv` raises, `reset` raises OllamaError where a query could not be
    embedded; `step` and `send` raise gymnasium.error.InvalidAction for an action that is not in the action
    space and gymnasium.error.ResetNeeded where a lane has no episode under way, and then no lane has taken
    its step. A lane whose next query could not be embedded raises OllamaError, and needs a reset.
    """

    envs: list[QueryMutationEnv]

    def __init__(
        self,
        envs: Sequence[QueryMutationEnv] | EnvConfig,
        num_envs: int | None = None,
        *,
        schedule: Schedule = "lanes",
        max_workers: int | None = None,
        **parts: Any,  # noqa: ANN401 - what QueryMutationEnv takes: queries, dispatcher, encoder, scorer
    ) -> None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is {schedule!r}; expected one of {', '.join(SCHEDULES)}")
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, got {max_workers!r}")
        made = _make(envs, num_envs, parts)
        self.schedule: Schedule = schedule
        self.max_workers = max_workers
        default_workers = {"sequential": 1, "phased": PHASE_WORKERS, "lanes": len(made)}
        super().__init__(
            [partial(_same, env) for env in made],
            autoreset_mode=AutoresetMode.SAME_STEP,
            workers=PlanWorkers(made[0].answerer, schedule, max_workers or default_workers[schedule]),
        )

    def _check_step(self, lane: int, action: Any) -> None:  # noqa: ANN401 - an integer, or it is raised
        """Raise if the lane cannot take this step."""
        self.envs[lane].check(action)

    def send(self, actions: Any, lanes: Sequence[int] | NDArray[np.integer[Any]]) -> None:  # noqa: ANN401
        """Start a step in some lanes, for `recv` to give: see `LaneVectorEnv.send`.

        Raises:
            ValueError: the schedule is not `lanes`.
        """
        self._check_lanes("send")
        super().send(actions, lanes)

    def recv(self, min_lanes: int = 1, timeout_s: float | None = None) -> Arrivals:
        """The steps that have arrived: see `LaneVectorEnv.recv`.

        Raises:
            ValueError: the schedule is not `lanes`.
        """
        self._check_lanes("recv")
        return super().recv(min_lanes, timeout_s)

    def state(self) -> list[dict[str, Any]]:
        """All that the lanes are between two steps, as plain data for `restore`.

        Raises:
            gymnasium.error.ResetNeeded: a lane has no episode under way.
            gymnasium.error.AlreadyPendingCallError: a lane has a step pending.
        """
        return list(self.call("state"))

    def restore(self, state: Sequence[Mapping[str, Any]]) -> Observations:
        """Go on where another vector environment of this config was; returns its observations (N, size).

        Raises:
            ValueError: the state is not of as many lanes.
            OllamaError: a query could not be embedded.
        """
        plans = [env.plan_restore(lane) for env, lane in zip(self.envs, state, strict=True)]
        with self._calls.interruptible():
            self._check_open()
            self._calls.check("restore")
            self._calls.start("restore", dict(enumerate(plans)))
            tasks = self._calls.all_of("restore", None)
            self._calls.take(tasks)
            self._calls.raise_first(tasks)
            self._last = [task.value for task in tasks]
            return self._show()  # type: ignore[no-any-return] # LaneVectorEnv knows no observation type

    def replay(self, rows: Iterable[Sequence[Mapping[str, Any] | None]]) -> None:
        """Play each lane's coming steps as they were recorded, without calling a model.

        Args:
            rows: for each step one line of transitions.jsonl a lane; the actions must be the recorded ones.
                None: this lane's step is played as ever.

        Raises:
            ValueError: a row that is not of as many lanes.
        """
        for row in rows:
            for env, step in zip(self.envs, row, strict=True):
                env.replay([step])

    def batch_reset(self) -> tuple[Observations, dict[str, Any]]:
        """`reset()` under the name that the batching document gives it."""
        return self.reset()

    def batch_step(self, actions: NDArray[np.int64]) -> Batch:
        """`step(actions)` under the name that the batching document gives it."""
        return self.step(actions)

    def _reset_jobs(self, resets: Mapping[int, tuple[int | None, dict[str, Any] | None]]) -> dict[int, Job]:
        return {k: self.envs[k].plan_reset(seed=seed, options=rest) for k, (seed, rest) in resets.items()}

    def _step_jobs(self, actions: Mapping[int, Any]) -> dict[int, Job]:
        return {k: _step(self.envs[k], action) for k, action in actions.items()}

    def _check_lanes(self, name: str) -> None:
        if self.schedule != "lanes":
            raise ValueError(
                f"{name}() under the schedule {self.schedule!r}, where lanes wait for each other: "
                "make the environment with schedule='lanes', or call step()"
            )


class PlanWorkers:
    """Plays the plans of lanes, and does all else on the caller's thread: see `envs.lanes.LaneWorkers`.

    When the interpreter ends, no request is begun any more, and it waits up to 5 seconds for the others.

    Args:
        answerer: answers the requests.
        schedule: how the plans are played.
        max_workers: the most requests that are answered at once.
    """

    def __init__(self, answerer: Answerer, schedule: Schedule, max_workers: int) -> None:
        self._schedule = schedule
        self._runner = PlanRunner(answerer.answer_one, max_workers)
        self._answer = partial(answerer.answer, max_workers=max_workers)
        stop_at_exit(self._runner, LAST_STEP_S)

    def prepare(self, tasks: Iterable[LaneTask]) -> None:
        """Do what is done on this thread now; an interrupt ends them all."""
        plans = []
        for task in tasks:
            if task.is_plan:
                plans.append(task)
            else:
                task.run(Exception)
        if self._schedule == "phased":
            play_plan(in_lockstep([task.play(Exception) for task in plans]), self._answer)
        elif self._schedule == "sequential":
            for task in plans:
                play_plan(task.play(Exception), self._answer)

    def start(self, tasks: Iterable[LaneTask]) -> None:
        """Have those plans played that were not handed out yet."""
        for task in tasks:
            if task.is_plan and not task.is_handed_out:
                self._runner.submit(task.play())
                task.is_handed_out = True

    def finish(self, closings: Sequence[LaneTask], timeout_s: float | None) -> list[int]:
        """Begin no further request, wait for those under way, and do the last tasks; no lane is late."""
        self._runner.stop()
        self._runner.join(timeout_s)
        for task in closings:
            task.run(Exception)
        return []


def in_lockstep(plans: Iterable[Plan[Request, Any, None]]) -> EpisodePlan[None]:
    """Many plans as one, whose batches hold the requests of all of them: a phase."""
    resumes = {plan: partial(next, plan) for plan in plans}
    while resumes:
        batches = {}
        for plan, resume in resumes.items():
            with suppress(StopIteration):
                batches[plan] = resume()
        try:
            replies = iter((yield [request for batch in batches.values() for request in batch]))
        except Exception as error:  # noqa: BLE001 - it is that of every plan that waits for this phase
            resumes = {plan: partial(plan.throw, error) for plan in batches}
        else:
            resumes = {
                plan: partial(plan.send, [next(replies) for _ in batch]) for plan, batch in batches.items()
            }


def _step(env: QueryMutationEnv, action: np.int64) -> EpisodePlan[StepResult]:
    """A step and, when it ends the episode, the reset that follows in the same step."""
    t = yield from env.plan_step(action)
    if not (t.terminated or t.truncated):
        return t.observation, t.reward, t.terminated, t.truncated, t.info
    first, info = yield from env.plan_reset()
    final = {"final_obs": t.observation, "final_info": t.info}
    return first, t.reward, t.terminated, t.truncated, final | info


def _same(env: QueryMutationEnv) -> QueryMutationEnv:
    return env


def _make(
    envs: Sequence[QueryMutationEnv] | EnvConfig, num_envs: int | None, parts: dict[str, Any]
) -> list[QueryMutationEnv]:
    if isinstance(envs, EnvConfig):
        if num_envs is None or num_envs < 1:
            raise ValueError(f"num_envs must be at least 1 beside a config, got {num_envs!r}")
        shared = parts | {name: tuple(parts[name]) for name in ("queries",) if name in parts}
        return [QueryMutationEnv(envs, **shared) for _ in range(num_envs)]
    if parts:
        raise TypeError(f"{', '.join(parts)}: expected only beside a config, not beside environments")
    made = list(envs)
    if not made or num_envs not in {None, len(made)}:
        raise ValueError(f"expected {num_envs or 'at least 1'} environments, got {len(made)}")
    for lane, env in enumerate(made):
        if env.answerer != made[0].answerer or env.observation_space != made[0].observation_space:
            raise ValueError(
                f"lane {lane} has other models, parts or observations than lane 0; expected environments "
                "that share a dispatcher, an encoder and a scorer: their calls are made together"
            )
    return made
