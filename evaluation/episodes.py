"""One episode of an evaluation: some agents, the same query, and each agent's own steps.

In each step all agents' actions are chosen; then their steps are played side by side; then comes the next
step. An agent whose episode has ended sits out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from envs.episode import (
    MOST_ATTEMPTS,
    Episode,
    Rewording,
    Rules,
    Transition,
    begin_together,
    derive_seed,
    reword_together,
    step_together,
)
from envs.models import Ask, ModelCalls, Rewrite
from evaluation.errors import StepperError, policy_traceback
from evaluation.policies.instance import Outcome
from evaluation.policies.policy import View
from evaluation.stepping import EpisodePolicies
from mutators.registry import load_mutators
from ollama_utils.errors import ENDS_THE_RUN, OllamaError
from ollama_utils.types import Completion
from scorers.reward import Verdict

Call = Callable[[], Any]
"""What the plans of an evaluation consist of; those of a batch may go side by side."""

MOST_ERRORS = 3
"""Messages that are kept of an agent's failed calls."""
_ENDS_THE_RUN = (StepperError, *ENDS_THE_RUN)
"""What no policy is to blame for."""


@dataclass(frozen=True, kw_only=True)
class EpisodeContext:
    """What the episodes of one mission have in common."""

    rules: Rules
    models: ModelCalls
    seed: int
    names: Mapping[str, str] = field(default_factory=dict)
    """What stands in the results for a server's address, which may be another one each time."""

    def named(self, message: str) -> str:
        """A message with these in place of the addresses, as text that every file can hold."""
        for address, name in self.names.items():
            message = message.replace(address, name)
        return message.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True, kw_only=True)
class CountedCalls(ModelCalls):
    """Model calls that are counted as they are asked for, whoever pays for the reply."""

    intent_threshold: float
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
        for question, verdict, near in zip(questions, verdicts, similarities, strict=True):
            self.counts["verdicts"] += _judged(question, verdict, near, self.intent_threshold)
        return verdicts


class AgentEpisode:
    """An agent in its episode: what its calls were, and what came of its steps.

    Args:
        context: the mission's.
        query: what the episode starts from.
        agent: which agent of the episode this is, from 0; agents have seeds of their own.
        number: which episode this is, from 0.
    """

    def __init__(self, context: EpisodeContext, query: str, agent: int = 0, number: int = 0) -> None:
        self.agent = agent
        self.transitions: list[Transition] = []
        self.calls = {"choices": 0, "rewrites": 0, "questions": 0, "verdicts": 0}
        self.attempts: list[str] = []
        """For each attempt at a step, or to begin, why it came to nothing; "" where it did not."""
        self.is_unscored = False
        """Whether a step of it could not be scored, in all its attempts or by what no other would mend."""
        self._missed = 0
        self._context = context
        self._tried: list[int] = []
        self._models = CountedCalls(
            **vars(context.models),
            intent_threshold=context.rules.intent_threshold,
            counts=self.calls,
        )
        seed = derive_seed(context.seed, "eval", query, agent)
        self._episode = Episode(rules=context.rules, original=query, seed=seed, number=number)

    @property
    def is_over(self) -> bool:
        """Whether there is no further step."""
        last = self.transitions[-1] if self.transitions else None
        return self.is_unscored or bool(last and (last.terminated or last.truncated))

    @property
    def step_errors(self) -> list[str]:
        """For each step that is over, or the beginning, why it is unscored; "" where it is not."""
        scored = [""] * self.attempts.count("")
        return [*scored, self.attempts[-1]] if self.is_unscored else scored

    def begin(self, attempts: int = MOST_ATTEMPTS) -> None:
        """Embed the query; an agent that cannot begin is unscored."""
        for _ in range(attempts):
            try:
                begin_together([self._episode], self._models)
            except OllamaError as error:
                self.attempts.append(self._context.named(f"{type(error).__name__}: {error}"))
                if not error.retryable:
                    break
            else:
                return
        self.is_unscored = True

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
            attempt=episode.attempt,
            agent=self.agent,
        )

    def miss_step(self, error: OllamaError) -> None:
        """A call of its policy failed, so the step did not happen; the policy is asked again."""
        self._missed += 1
        self.attempts.append(self._context.named(f"{type(error).__name__}: {error}"))
        self._episode.attempt += 1
        self.is_unscored = not error.retryable or self._episode.attempt >= MOST_ATTEMPTS

    def reword(self, action: int) -> Rewording:
        """What the next step would ask, if it were taken."""
        (rewording,) = reword_together([self._episode], [action], self._models)
        return rewording

    def step(self, action: int) -> Transition:
        """Play one step; one whose calls failed is played again by the next call."""
        (transition,) = step_together([self._episode], [action], self._models)
        self.transitions.append(transition)
        self.attempts.append(self._context.named(transition.info["error"]))
        self.is_unscored = transition.info["unscored"] and transition.truncated
        if not transition.info["unscored"]:
            self._tried.append(action)
        return transition

    def result(self, policy: str, *, guarded: bool = False) -> dict[str, Any]:
        """What came of it, as in results.json; `undetermined` and `filtered` only where there are such steps.

        Args:
            policy: the name of its policy.
            guarded: whether its query is a guard query: then the answers to it are counted, and those to
                rewordings that ask for something else, which are no answers to it, apart.
        """
        infos = [transition.info for transition in self.transitions]
        scored = [info for info in infos if not info["unscored"]]
        undetermined = sum(bool(info["undetermined"]) for info in scored)
        filtered = sum(info["outcome"] == "filtered" for info in scored)
        return {
            "policy": policy,
            "status": "unscored" if self.is_unscored else "scored",
            "success": bool(scored and scored[-1]["success"]),
            "return": float(sum(info["reward"] for info in scored)),
            "steps": len(scored),
            "refused": sum(info["outcome"] == "refused" for info in scored),
            "partial": sum(bool(info["partial"]) for info in scored),
            "drifted": sum(info["rejected"] == "drifted" for info in scored),
            "unscored_steps": len(infos) - len(scored) + self._missed,
            "errors": [error for error in self.attempts if error][:MOST_ERRORS],
            "calls": self.calls,
            "actions": [info["mutator"] for info in scored],
            **({"undetermined": undetermined} if undetermined else {}),
            **({"filtered": filtered} if filtered else {}),
            **(_answers(scored) if guarded else {}),
        }


def _answers(scored: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of scored steps how many were answered (undetermined counts), with the intent kept and without."""
    kept = [bool(info["reward_parts"]["intent_kept"]) for info in scored if info["outcome"] == "answered"]
    return {"answered": sum(kept), "answered_other": len(kept) - sum(kept)}


def _judged(question: Ask, verdict: Verdict, near: float, intent_threshold: float) -> int:
    """How many calls to a judge a verdict took; see `scorers.reward` for when an intent judge is asked."""
    parts = verdict.parts
    if "judge_repaired" not in parts:
        return 0
    open_question = question.query != question.original and near >= intent_threshold
    asked = "judge_score" in parts or (parts["answered"] and open_question)
    return 1 + int(parts["judge_repaired"]) if asked else 0


@dataclass(frozen=True, kw_only=True)
class PlayedEpisode:
    """What came of an episode."""

    agents: Sequence[AgentEpisode]
    error: str = ""
    """The traceback of the policy that raised, or came too late: the episode is `failed`."""

    def result(self, query: str, policies: Sequence[str], *, guarded: bool = False) -> dict[str, Any]:
        """What results.json holds; of an episode that failed, nothing but why.

        Args:
            query: what every agent started from.
            policies: (agents,), the names of their policies.
            guarded: whether the query is a guard query.
        """
        pairs = zip(self.agents, policies, strict=True)
        agents = [agent.result(name, guarded=guarded) for agent, name in pairs]
        return {
            "query": query,
            "status": "failed" if self.error else "done",
            "error": self.error,
            "agents": [] if self.error else agents,
        }


EpisodePlan = Generator[Sequence[Call], Sequence[Any], PlayedEpisode]


def play_episode(
    agents: Sequence[AgentEpisode],
    context: EpisodeContext,
    begin: Callable[[], EpisodePolicies],
    asking: Collection[int] = (),
) -> EpisodePlan:
    """The plan of an episode.

    Args:
        agents: in their order, none begun.
        context: the mission's.
        begin: makes the agents' policies.
        asking: the agents whose policy is a model, so that each of its choices is a call.
    """
    yield [agent.begin for agent in agents]
    if all(agent.is_over for agent in agents):
        return PlayedEpisode(agents=agents)
    (policies,) = yield [begin]
    try:
        while playing := [agent for agent in agents if not agent.is_over]:
            for agent in playing:
                agent.calls["choices"] += agent.agent in asking
            outcomes = yield from policies.step([agent.view() for agent in playing])
            steps, errors = _sorted(playing, outcomes)
            if errors:
                return PlayedEpisode(agents=agents, error=context.named(policy_traceback(errors[0])))
            yield steps
    finally:
        policies.close()
    return PlayedEpisode(agents=agents)


def ask_as_it_stands(
    query: str, context: EpisodeContext, number: int
) -> Generator[Sequence[Call], Sequence[Any], dict[str, Any]]:
    """The plan of asking a query once without rewording it; returns what results.json holds of it.

    The question is that of the first agent of `noop` in its first step, so that one call serves both.

    Args:
        query: the query.
        context: the mission's; its mutators do not matter.
        number: which episode of the mission this is the query of.
    """
    rules = replace(context.rules, mutators=load_mutators(("noop",)), max_steps=1)
    agent = AgentEpisode(replace(context, rules=rules), query, number=number)
    yield [agent.begin]
    while not agent.is_over:
        yield [partial(agent.step, 0)]
    unknown = {"outcome": "unscored", "partial": False, "undetermined": False}
    info = unknown if agent.is_unscored else agent.transitions[-1].info
    errors = [error for error in agent.attempts if error]
    return {"query": query, **{name: info[name] for name in unknown}, "errors": errors}


def _sorted(
    playing: Sequence[AgentEpisode], outcomes: Sequence[Outcome]
) -> tuple[list[Call], list[Exception]]:
    """The steps to play, and the errors of policies; an agent whose policy's own call failed misses its step.

    Raises:
        Exception: what no policy is to blame for.
    """
    steps: list[Call] = []
    errors: list[Exception] = []
    for agent, outcome in zip(playing, outcomes, strict=True):
        if isinstance(outcome, int):
            steps.append(partial(agent.step, outcome))
        elif isinstance(outcome, _ENDS_THE_RUN):
            raise outcome
        elif isinstance(outcome, OllamaError):
            agent.miss_step(outcome)
        else:
            errors.append(outcome)
    return steps, errors
