"""One episode of an evaluation: some agents, the same query, and each agent's own plan.

In each step all agents' actions are asked for, then gathered; then their plans run side by side; then comes
the next step. An agent whose episode has ended sits out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from envs.episode import (
    Answer,
    Ask,
    Episode,
    Judge,
    Reply,
    Request,
    Rewrite,
    Rules,
    Transition,
    derive_seed,
)
from evaluation.jobs import Jobs
from evaluation.policies.policy import View
from evaluation.wrappers.errors import WrapperError
from evaluation.wrappers.tracebacks import policy_traceback
from evaluation.wrappers.wrapper import Team
from ollama_utils.errors import CallCancelledError, OllamaError, ReplyLogError
from ollama_utils.plans import play_plan
from scorers.reward import Verdict

MOST_ATTEMPTS = 8
"""How often an agent tries a step whose calls fail; after that nothing is known of its episode."""
MOST_ERRORS = 3
"""Messages that are kept of an agent's failed calls."""
_ENDS_THE_RUN = (WrapperError, ReplyLogError, CallCancelledError)
"""What no policy is to blame for."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What the episodes of one mission have in common."""

    rules: Rules
    answer: Answer
    seed: int
    names: Mapping[str, str] = field(default_factory=dict)
    """What stands in the results for a server's address, which may be another one each time."""

    def named(self, message: str) -> str:
        """A message with these in place of the addresses, as text that every file can hold."""
        for address, name in self.names.items():
            message = message.replace(address, name)
        return message.encode("utf-8", "backslashreplace").decode("utf-8")


class Player:
    """An agent in its episode: its plan, what its calls were, and what came of its steps.

    Args:
        ground: the mission.
        query: what the episode starts from.
        agent: which agent of the episode this is, from 0; agents have seeds of their own.
        number: which episode this is, from 0.
    """

    def __init__(self, ground: Ground, query: str, agent: int = 0, number: int = 0) -> None:
        self.agent = agent
        self.transitions: list[Transition] = []
        self.calls = {"choices": 0, "rewrites": 0, "questions": 0, "verdicts": 0}
        self.attempts: list[str] = []
        """For each attempt at a step, or to begin, why it came to nothing; "" where it did not."""
        self.is_unscored = False
        """Whether a step of it could not be scored in all its attempts."""
        self._unchosen = 0
        self._ground = ground
        self._tried: list[int] = []
        seed = derive_seed(ground.seed, "eval", query, agent)
        self._episode = Episode(rules=ground.rules, original=query, seed=seed, number=number)

    @property
    def is_over(self) -> bool:
        """Whether there is no further step."""
        last = self.transitions[-1] if self.transitions else None
        return self.is_unscored or bool(last and (last.terminated or last.truncated))

    def begin(self) -> None:
        """Embed the query; an agent that cannot begin is unscored."""
        for _ in range(MOST_ATTEMPTS):
            try:
                play_plan(self._episode.begin(), self._answer)
            except OllamaError as error:
                self.attempts.append(self._ground.named(f"{type(error).__name__}: {error}"))
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

    def miss(self, error: OllamaError) -> None:
        """A call of its policy failed, so the step did not happen; the policy is asked again."""
        self._unchosen += 1
        self.attempts.append(self._ground.named(f"{type(error).__name__}: {error}"))
        self._episode.attempt += 1
        self.is_unscored = self._episode.attempt >= MOST_ATTEMPTS

    def step(self, action: int) -> Transition:
        """Play one step; one whose calls failed is played again by the next call."""
        transition = play_plan(self._episode.step(action), self._answer)
        self.transitions.append(transition)
        self.attempts.append(self._ground.named(transition.info["error"]))
        self.is_unscored = self._episode.attempt >= MOST_ATTEMPTS
        if not transition.info["unscored"]:
            self._tried.append(action)
        return transition

    def result(self, policy: str) -> dict[str, Any]:
        """What came of it, as it stands in results.json."""
        infos = [transition.info for transition in self.transitions]
        scored = [info for info in infos if not info["unscored"]]
        return {
            "policy": policy,
            "status": "unscored" if self.is_unscored else "scored",
            "success": bool(scored and scored[-1]["success"]),
            "return": float(sum(info["reward"] for info in scored)),
            "steps": len(scored),
            "refused": sum(info["outcome"] == "refused" for info in scored),
            "partial": sum(bool(info["partial"]) for info in scored),
            "drifted": sum(info["rejected"] == "drifted" for info in scored),
            "unscored_steps": len(infos) - len(scored) + self._unchosen,
            "errors": [error for error in self.attempts if error][:MOST_ERRORS],
            "calls": self.calls,
            "actions": [info["mutator"] for info in scored],
        }

    def _answer(self, requests: Sequence[Request]) -> Sequence[Reply]:
        """The mission's replies; calls are counted as they are asked for, whoever paid for the reply."""
        replies = self._ground.answer(requests)
        for request, reply in zip(requests, replies, strict=True):
            match request, reply:
                case Rewrite(), _:
                    self.calls["rewrites"] += request.mutator.kind == "model"
                case Ask(), _:
                    self.calls["questions"] += 1
                case Judge(), Verdict():
                    self.calls["verdicts"] += _judged(request, reply, self._ground.rules.intent_threshold)
        return replies


def _judged(request: Judge, verdict: Verdict, intent_threshold: float) -> int:
    """How many calls to a judge a verdict took; see `scorers.reward` for when an intent judge is asked."""
    parts = verdict.parts
    if "judge_repaired" not in parts:
        return 0
    open_question = request.query != request.original and request.similarity >= intent_threshold
    asked = "judge_score" in parts or (parts["answered"] and open_question)
    return 1 + int(parts["judge_repaired"]) if asked else 0


class EpisodeRun:
    """An episode that plays itself on `jobs` once it is started.

    Args:
        ground: the mission.
        query: what every agent starts from.
        number: which episode this is, from 0.
        policies: the names of the agents' policies; there are as many agents.
        make_team: makes the agents' policies.
        jobs: where the plans run.
        asking: the agents whose policy is a model, so that each of its choices is a call.
    """

    def __init__(
        self,
        ground: Ground,
        query: str,
        number: int,
        policies: Sequence[str],
        make_team: Callable[[], Team],
        jobs: Jobs,
        asking: Collection[int] = (),
    ) -> None:
        self.number = number
        self.players = [Player(ground, query, agent, number) for agent in range(len(policies))]
        self.error = ""
        """The traceback of the policy that raised, or came too late: the episode is `failed`."""
        self._ground = ground
        self._query = query
        self._policies = policies
        self._asking = asking
        self._make_team = make_team
        self._team: Team | None = None
        self._jobs = jobs
        self._ended: Callable[[], None] = lambda: None

    def start(self, ended: Callable[[], None]) -> None:
        """Begin; the episode goes on by itself, and calls `ended` once, on any thread, when it is over."""
        self._ended = ended
        self._jobs.together([player.begin for player in self.players], self._go_on)

    def result(self) -> dict[str, Any]:
        """What came of the episode; of one that failed nothing is told but why."""
        agents = [p.result(name) for p, name in zip(self.players, self._policies, strict=True)]
        return {
            "query": self._query,
            "status": "failed" if self.error else "done",
            "error": self.error,
            "agents": [] if self.error else agents,
        }

    def _go_on(self, _played: Sequence[Any]) -> None:
        """Play the next step of the agents that are not done."""
        playing = [player for player in self.players if not player.is_over]
        try:
            steps = self._choose(playing)
        except _ENDS_THE_RUN:
            raise
        except Exception as error:  # noqa: BLE001 - a policy is anybody's code
            self.error = self._ground.named(policy_traceback(error, __name__))
        if self.error or not playing:
            self._end()
        elif steps:
            self._jobs.together(steps, self._go_on)
        else:
            self._go_on(())

    def _choose(self, playing: Sequence[Player]) -> list[Callable[[], Transition]]:
        """The steps of all agents: every policy is asked before the first answer is waited for.

        An agent whose policy made a call that failed has none: it misses its turn.

        Raises:
            Exception: what the first policy that failed raised, once all have answered.
        """
        if not playing:
            return []
        team = self._team = self._team or self._make_team()
        for player in playing:
            player.calls["choices"] += player.agent in self._asking
        pending = [team.submit(player.agent, player.view()) for player in playing]
        steps: list[Callable[[], Transition]] = []
        errors: list[Exception] = []
        for player, choice in zip(playing, pending, strict=True):
            try:
                steps.append(partial(player.step, choice.result()))
            except _ENDS_THE_RUN:
                raise
            except OllamaError as error:
                player.miss(error)
            except Exception as error:  # noqa: BLE001 - raised below, when nothing is under way
                errors.append(error)
        if errors:
            raise errors[0]
        return steps

    def _end(self) -> None:
        if self._team:
            self._team.close()
        self._ended()
