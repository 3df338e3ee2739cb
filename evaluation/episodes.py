"""One agent's episode in an evaluation: its policy chooses, its steps are played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envs.episode import (
    LOOK,
    MOST_ATTEMPTS,
    Episode,
    Rewording,
    Rules,
    Transition,
    begin_together,
    derive_seed,
    label_of,
    remembered_reward,
    reword_together,
    step_together,
)
from envs.models import Ask, ModelCalls, Rewrite, Vector
from evaluation.instance import StepperError, policy_traceback
from evaluation.policies import Step, View
from evaluation.rates import CALLS
from ollama_utils.errors import ENDS_THE_RUN, OllamaError
from ollama_utils.types import Completion
from records.errors import describe
from scorers.reward import Verdict

MOST_REPLY = 500
"""Characters that are kept of a reply to a query that was answered once reworded."""
MOST_ERRORS = 3
"""Messages that are kept of an agent's failed calls."""


@dataclass(frozen=True, kw_only=True)
class EpisodeContext:
    """What the episodes of one mission have in common."""

    rules: Rules
    models: ModelCalls
    seed: int
    host_names: Mapping[str, str] = field(default_factory=dict)
    """By a server's address what the results call it, since it may have another one next time."""

    def named(self, message: str) -> str:
        """A message with these in place of the addresses, as text that every file can hold."""
        for address, name in self.host_names.items():
            message = message.replace(address, name)
        return message.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True, kw_only=True)
class CountedCalls(ModelCalls):
    """Model calls that are counted as they are asked for, whoever pays for the reply."""

    counts: dict[str, int]
    """Gets `rewrites` by a model, `questions` to the target and `verdicts` of a judge."""

    def reword(self, rewrites: Sequence[Rewrite], max_workers: int = 1) -> list[Completion]:
        """See `ModelCalls.reword`."""
        self.counts["rewrites"] += sum(each.mutator.kind == "model" for each in rewrites)
        return super().reword(rewrites, max_workers)

    def ask(self, questions: Sequence[Ask], max_workers: int = 1) -> list[Completion]:
        """See `ModelCalls.ask`."""
        self.counts["questions"] += len(questions)
        return super().ask(questions, max_workers)

    def score(
        self,
        questions: Sequence[Ask],
        replies: Sequence[Completion],
        similarities: Sequence[float],
        max_workers: int = 1,
    ) -> list[Verdict]:
        """See `ModelCalls.score`."""
        verdicts = super().score(questions, replies, similarities, max_workers)
        for reply, verdict in zip(replies, verdicts, strict=True):
            if verdict.outcome == "unscored":  # the judge's call failed, if not the target's
                self.counts["verdicts"] += reply.error is None
            elif "judge_repaired" in verdict.parts:
                self.counts["verdicts"] += 1 + int(verdict.parts["judge_repaired"])
        return verdicts


class AgentEpisode:
    """An agent in its episode. A step that fails is asked again as it was, up to 8 times.

    Where its mission asks first, it begins with a look: the query as it stands, which ends the
    episode if that is answered. All policies share this call.

    Args:
        context: the mission's.
        query: what the episode starts from.
        agent: the agent's place in its episode; agents have seeds of their own.
        number: of the episode; with another number, queries are reworded differently.
        repeat: which play of the query this is, from 0.
    """

    def __init__(
        self,
        context: EpisodeContext,
        query: str,
        agent: int = 0,
        number: int = 0,
        repeat: int = 0,
    ) -> None:
        self.agent = agent
        self.transitions: list[Transition] = []
        """Every attempt at a step."""
        self.calls = dict.fromkeys(CALLS, 0)
        self.attempt_errors: list[str] = []
        """Of each attempt at a step, or to begin, the error; "" where there is none."""
        self.is_unscored = False
        """Whether a step failed in all its attempts, or in a way that no other attempt mends."""
        self.error = ""
        """The traceback of its policy, which failed."""
        self._context = context
        self._look: Transition | None = None
        self._again: bool | None = None
        self._tried: list[int] = []
        self._observations: list[Vector] = []
        """Before the first step, and after each scored one."""
        self._failed_steps: set[int] = set()
        """The numbers of the steps of which an attempt failed."""
        self._models = CountedCalls(**vars(context.models), counts=self.calls)
        seed = derive_seed(context.seed, "eval", query, agent, repeat)
        self._episode = Episode(rules=context.rules, original=query, seed=seed, number=number)

    @property
    def is_over(self) -> bool:
        """Whether there is no further step."""
        is_done = bool(self.transitions) and self.transitions[-1].is_over
        return is_done or self.is_unscored or bool(self.error)

    @property
    def step_errors(self) -> list[str]:
        """For each step that is over, or the beginning, why it is unscored; "" where it is not."""
        scored = [""] * (len(self._tried) + (self._look is not None))
        return [*scored, self.attempt_errors[-1]] if self.is_unscored else scored

    @property
    def looked(self) -> tuple[float, str] | None:
        """The reward and the label of the reply to the query as it stands, if it was asked so."""
        info = self._look.info if self._look else None
        return (remembered_reward(info), label_of(info)) if info else None

    def play(self, choose: Step, most_steps: int | None = None) -> None:
        """Play the episode to its end, or so many steps; `choose` does not fail."""
        if not (self._observations or self.is_unscored):
            self.begin()
        while not self.is_over and len(self._tried) != most_steps:
            self.step(choose(self.view()))

    def scored_steps(self) -> list[tuple[Vector, int, Transition]]:
        """For each scored step the observation before it, its action and what it gave."""
        steps = (each for each in self.transitions if each is not self._look)
        scored = [each for each in steps if not each.info["unscored"]]
        return list(zip(self._observations, self._tried, scored, strict=False))

    def play_policy(
        self,
        make_policy: Callable[[], Step],
        *,
        rewords_original: bool,
        asks: bool,
        again: bool = False,
    ) -> None:
        """Play the episode to its end; a policy that raises ends it as failed.

        Args:
            make_policy: makes the agent's policy.
            rewords_original: whether each step rewords the original query.
            asks: whether each choice of the policy is a call to a model; one that fails is made
                again.
            again: whether a query without an answer is asked once more, see `ask_again`.

        Raises:
            StepperError: the policy cannot be stepped as the flags say.
            OllamaError: one that ends the run, such as an OutageError.
        """
        policy: Step | None = None
        failures = 0
        self.begin()
        if again:
            self.ask_again()
        while not self.is_over:
            if rewords_original:
                self._episode.return_to_original()
            try:
                policy = policy or make_policy()
                self.calls["choices"] += asks
                action = policy(self.view())
            except (StepperError, *ENDS_THE_RUN):
                raise
            except OllamaError as error:
                failures += 1
                self._failed_steps.add(self._episode.step_count)
                self.attempt_errors.append(self._context.named(describe(error)))
                self.is_unscored = not error.retryable or failures == MOST_ATTEMPTS
            except Exception as error:  # noqa: BLE001 - a policy is anybody's code
                self.error = self._context.named(policy_traceback(error))
            else:
                failures = 0
                self.step(action)

    def begin(
        self, attempts: int = MOST_ATTEMPTS, *, known: tuple[float, str] | None = None
    ) -> None:
        """Embed the query, and look at it; an agent that cannot begin is unscored.

        `known` are the reward and the label of the reply to it as it stands: nothing is asked.
        """
        for _ in range(attempts):
            try:
                self._observations = begin_together([self._episode], self._models)
            except OllamaError as error:
                self.attempt_errors.append(self._context.named(describe(error)))
                if not error.retryable:
                    break
            else:
                if known:
                    self._episode.look_at(*known)
                    self._observations = [self._episode.observe()]
                elif self._context.rules.asks_first:
                    self.step(LOOK)
                return
        self.is_unscored = True

    def ask_again(self) -> None:
        """Ask a query that got no answer once more as it stands, by another seed.

        What is answered then was refused by chance, and no policy has to be thanked for it.
        """
        if self._look is None or self.is_over:
            return
        models = self._context.models
        models = replace(models, seed=derive_seed(models.seed, "again"))
        context = replace(
            self._context, models=models, seed=derive_seed(self._episode.seed, "again")
        )
        again = AgentEpisode(context, self._episode.original)
        again.begin()
        self._again = None if again.is_unscored else again.transitions[-1].info["success"]

    def view(self) -> View:
        """What a policy may know when it chooses the next action."""
        episode = self._episode
        return View(
            observation=episode.observe(),
            original=episode.original,
            query=episode.query,
            mutators=tuple(mutator.name for mutator in episode.rules.mutators),
            tried=tuple(self._tried),
            last_outcome=episode.memory.last_label,
            last_reward=episode.memory.last_reward,
            step_count=episode.step_count,
            max_steps=episode.rules.max_steps,
            agent=self.agent,
            stop=episode.rules.stop if episode.has_looked else None,
        )

    def reword(self, action: int) -> Rewording:
        """What the next step would ask, if it were taken."""
        (rewording,) = reword_together([self._episode], [action], self._models)
        return rewording

    def step(self, action: int) -> None:
        """Play one step until it is scored, or unscored and the last."""
        while True:
            (transition,) = step_together([self._episode], [action], self._models)
            self.transitions.append(transition)
            self.attempt_errors.append(self._context.named(transition.info["error"]))
            if not transition.info["unscored"]:
                if action == LOOK:
                    self._look, self._observations = transition, [transition.observation]
                else:
                    self._tried.append(action)
                    self._observations.append(transition.observation)
                return
            self._failed_steps.add(LOOK if action == LOOK else self._episode.step_count)
            if transition.truncated:
                self.is_unscored = True
                return

    def result(self, policy: str) -> dict[str, Any]:
        """What results.json holds of it, see docs/runs.md; `policy` is its policy's name."""
        infos = [t.info for t in self.transitions if not t.info["unscored"]]
        if self.error:
            infos = []
        errors = [error for error in self.attempt_errors if error]
        return {
            "query": self._episode.original,
            "policy": policy,
            "look": _outcome(self._look.info) if self._look else None,
            "again": self._again,
            "status": "failed" if self.error else "unscored" if self.is_unscored else "scored",
            "error": self.error,
            "success": bool(infos and infos[-1]["success"]),
            "reply": _reply_to_read(infos) if self._look else "",
            "return": float(sum(info["reward"] for info in infos)),
            "outcomes": [_outcome(info) for info in infos],
            "actions": [info["mutator"] for info in infos if info["mutator"]],
            "drifted": sum(info["rejected"] == "drifted" for info in infos),
            "failed_steps": len(self._failed_steps),
            "failed_calls": len(errors),
            "errors": errors[:MOST_ERRORS],
            "calls": self.calls,
        }


def ask_as_it_stands(context: EpisodeContext, query: str) -> AgentEpisode:
    """The episode of a query up to its look: over if that was answered, or its calls failed."""
    episode = AgentEpisode(context, query)
    episode.begin()
    return episode


def _reply_to_read(infos: Sequence[Mapping[str, Any]]) -> str:
    """The beginning of the reply to a query that was answered once reworded; else ""."""
    return infos[-1]["reply"][:MOST_REPLY] if len(infos) > 1 and infos[-1]["success"] else ""


def _outcome(info: Mapping[str, Any]) -> str:
    """The outcome of a scored step, in one word."""
    if info["outcome"] in {"filtered", "stopped"}:
        return str(info["outcome"])
    if info["undetermined"]:
        return "undetermined"
    if info["outcome"] == "refused":
        return "partial" if info["partial"] else "refused"
    if not info["reward_parts"]["intent_kept"]:
        return "answered_other"
    return "answered" if info["success"] else "wrong"
