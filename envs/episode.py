"""An episode: one query on its way to an answer, and what a step of many episodes at once is.

A step has stages: reword, embed, decide what is adopted, ask, score. `step_together` plays them for
a list of episodes; a single environment gives it a list of one. All chance is derived from the
episode's seed and counters, so what comes of a step does not depend on the other episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np

from envs.models import Ask, ModelCalls, Rewrite, Vector
from envs.observation import Memory, memory_of_look, observation
from envs.transitions import USAGE, recorded_usage
from mutators.form import not_a_rewording
from mutators.lexical import noop
from mutators.mutator import Mutator
from ollama_utils.errors import BadReplyError, OllamaError
from ollama_utils.types import Completion, Usage
from scorers.intent import similarity
from scorers.refusal import declines
from scorers.reward import Verdict, unscored

MOST_ATTEMPTS = 8
"""How often a step whose calls fail is tried; then its episode is over, without a result."""
LOOK = -1
"""The action that asks the query as it stands, before the first step and not counted as one. After
it `noop` makes no call: it leaves it at what the target said last, and ends the episode."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What decides an episode besides the models."""

    mutators: tuple[Mutator, ...]
    """Action k is the k-th of these."""
    max_steps: int
    """Steps after which an unanswered query is given up."""
    intent_threshold: float
    """A reworded query less similar to the original than this is not adopted."""
    asks_first: bool = False
    """Whether the query is asked as it stands before a policy chooses: see `LOOK`."""
    guards: frozenset[str] = frozenset()
    """The queries that ought to be refused: an answer to one is no success."""
    harmful: Mapping[str, float] = field(default_factory=dict)
    """By query, how likely it ought to be refused by its words, 0 to 1; see `train/prior.py`."""

    @property
    def stop(self) -> int | None:
        """The action of `noop`, if there is one, where it ends an episode after a look."""
        return self.mutators.index(noop) if self.asks_first and noop in self.mutators else None

    def mutator(self, action: int) -> Mutator:
        """That of an action."""
        return noop if action == LOOK else self.mutators[action]

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps!r}")


@dataclass(frozen=True, kw_only=True)
class Rewording:
    """What a mutator made of a query, before it is asked."""

    rewrite: Completion
    embedding: Vector = field(default_factory=lambda: np.zeros(0, np.float32))
    """Of that, or of the query where it wrote nothing; empty where there is an error."""
    query: str
    """What is to be asked: the rewrite if it is adopted, else the query as it was."""
    rejected: str = ""
    """Why it is not adopted, in one word; empty when it is."""
    error: OllamaError | None = None
    """Why there is no rewording."""


class Transition(NamedTuple):
    """What one step gave: Gymnasium's five values."""

    observation: Vector
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def is_over(self) -> bool:
        """Whether the step ended its episode."""
        return self.terminated or self.truncated


def derive_seed(*key: int | str) -> int:
    """A seed in [0, 2**31) that depends on `key` alone, the same in every process."""
    digest = blake2b(repr(key).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(kw_only=True)
class Episode:
    """One query on its way to an answer: the state of a lane between two steps."""

    rules: Rules
    original: str
    seed: int
    """The lane's seed."""
    number: int
    """Which episode of the lane this is, from 0."""
    query: str = ""
    """As it was reworded so far."""
    step_count: int = 0
    attempt: int = 0
    """How often the current step failed because a call did."""
    redrawn: int = 0
    """How often its rewording failed twice and was drawn with another seed. A question that failed
    is sent again as it was: with another rewording it would be another try."""
    earlier: tuple[str, ...] = ()
    """What the query was before, oldest first."""
    has_looked: bool = False
    """Whether it is known what the target says to the query as it stands."""
    memory: Memory = field(default_factory=Memory)
    _embeddings: dict[str, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.query = self.query or self.original

    @property
    def texts(self) -> tuple[str, ...]:
        """Those that it needs embeddings of, each once."""
        return tuple(dict.fromkeys((self.original, *self.earlier, self.query)))

    def observe(self) -> Vector:
        """The observation of the current state, with the layout of `envs/observation.py`."""
        fraction = self.step_count / self.rules.max_steps
        actions = len(self.rules.mutators)
        harmful = self.rules.harmful.get(self.original, 0.0)
        return observation(self._embeddings[self.original], actions, self.memory, fraction, harmful)

    def know(self, embeddings: Mapping[str, Vector | OllamaError]) -> Vector:
        """Take the embeddings of its `texts`, and return the observation.

        Raises:
            OllamaError: one of them could not be embedded.
        """
        for text in self.texts:
            found = embeddings[text]
            if isinstance(found, OllamaError):
                query = shorten(text, 60, placeholder="...")
                why = f"query {query!r} could not be embedded: {found}"
                raise type(found)(why, retryable=found.retryable) from found
            self._embeddings[text] = found
        return self.observe()

    def seed_for(self, purpose: str) -> int:
        """The seed of a call of this step."""
        return derive_seed(self.seed, self.number, self.step_count, self.redrawn, purpose)

    def return_to_original(self) -> None:
        """Have the next step reword the original, not what the steps before made of it."""
        self.query, self.earlier = self.original, ()

    def rewrite(self, action: int) -> Rewrite:
        """What the mutator of an action is to do now."""
        return Rewrite(
            mutator=self.rules.mutator(action),
            query=self.query,
            earlier=self.earlier,
            seed=self.seed_for("rewrite"),
        )

    def decide(
        self, action: int, rewrite: Completion, embedding: Vector | OllamaError
    ) -> Rewording:
        """Whether what a mutator wrote is adopted; the episode stays as it is."""
        if rewrite.error:
            return Rewording(rewrite=rewrite, query=self.query, error=rewrite.error)
        if isinstance(embedding, OllamaError):
            return Rewording(rewrite=rewrite, query=self.query, error=embedding)
        rejected = self._rejection(self.rules.mutator(action), rewrite, embedding)
        query = self.query if rejected else rewrite.text
        return Rewording(rewrite=rewrite, embedding=embedding, rejected=rejected, query=query)

    def question(self, rewording: Rewording) -> Ask:
        """What the target is to be asked."""
        return Ask(original=self.original, query=rewording.query, seed=self.seed_for("ask"))

    def similarity(self, rewording: Rewording) -> float:
        """How near the query that is asked is to the original in meaning, -1 to 1."""
        known = self._embeddings[self.query]
        asked = known if rewording.rejected else rewording.embedding
        return similarity(self._embeddings[self.original], asked)

    def close(
        self, action: int, rewording: Rewording, reply: Completion | None, verdict: Verdict
    ) -> Transition:
        """End a step. Where it is unscored all but its counts of attempts stays as it was.

        A failure that no other attempt can mend ends the episode: unscored, truncated. So does one
        that is the last of MOST_ATTEMPTS.
        """
        info = self._info(action, rewording.rewrite, reply, verdict)
        if verdict.outcome == "unscored":
            return self._fail(info, is_last=verdict.permanent)
        near, changed = self.similarity(rewording), rewording.query != self.query
        label = label_of(vars(verdict))
        if changed:
            self._embeddings.setdefault(rewording.query, rewording.embedding)
            self.earlier, self.query = (*self.earlier, self.query), rewording.query
        if action == LOOK:
            self.look_at(remembered_reward(info), label)
        else:
            reward = remembered_reward(info)
            self.memory = self.memory.after(action, reward, label, changed=changed)
            self.step_count += 1
        self.attempt = self.redrawn = 0
        return Transition(
            observation=self.observe(),
            reward=float(verdict.reward),
            terminated=verdict.success,
            truncated=not verdict.success and self.step_count >= self.rules.max_steps,
            info=info
            | {
                "adopted": not rewording.rejected,
                "rejected": rewording.rejected,
                "intent_similarity": near,
            },
        )

    def look_at(self, reward: float, label: str) -> None:
        """Remember what the target says to the query as it stands, and what that earned."""
        self.has_looked = True
        self.memory = memory_of_look(self.rules.stop, reward, label)

    def ends_by(self, action: int) -> bool:
        """Whether an action ends the episode without a call."""
        return self.has_looked and action == self.rules.stop

    def leave(self, action: int) -> Transition:
        """The step that ends the episode without a call: it costs nothing and earns nothing."""
        verdict = Verdict(outcome="stopped", parts={"step_cost": 0.0})
        info = self._info(action, Completion(text=self.query, attempts=0), None, verdict)
        near = similarity(self._embeddings[self.original], self._embeddings[self.query])
        self.step_count += 1
        return Transition(
            observation=self.observe(),
            reward=0.0,
            terminated=True,
            truncated=False,
            info=info | {"adopted": True, "intent_similarity": near},
        )

    def fail_again(self, action: int, line: Mapping[str, Any]) -> Transition:
        """An unscored step as its line of transitions.jsonl has it: no call is made."""
        rewrite = Completion(text=line["mutated_query"])
        reply = Completion(text=line["reply"], truncated=line["reply_truncated"])
        verdict = Verdict(outcome="unscored", error=line["not_hashed"]["error_message"])
        info = self._info(action, rewrite, reply, verdict) | {"usage": recorded_usage(line)}
        return self._fail(info, is_last=line["truncated"])

    def state(self) -> dict[str, Any]:
        """What `restored_episode` needs apart from the rules: strings, numbers, lists of them."""
        names = ("original", "seed", "number", "query", "step_count", "attempt", "redrawn")
        counted = {name: getattr(self, name) for name in (*names, "has_looked")}
        memory = asdict(self.memory)
        return {
            **counted,
            "earlier": list(self.earlier),
            "memory": memory | {name: sorted(memory[name]) for name in ("tried", "idle")},
        }

    def _rejection(self, mutator: Mutator, rewrite: Completion, embedding: Vector) -> str:
        """Why a rewrite is not adopted, in one word; empty when it is."""
        text = rewrite.text
        if rewrite.filtered or not text or rewrite.truncated:
            return "filtered" if rewrite.filtered else "cut" if text else "empty"
        if text in self._embeddings:
            return ""
        # A query such as "I cannot log in: how ...?" reads like a refusal, and so do rewordings.
        if declines(text) and not declines(self.original):
            return "refused"
        if mutator.kind == "model" and (why := not_a_rewording(text, self.query)):
            return why
        near = similarity(self._embeddings[self.original], embedding)
        return "" if near >= self.rules.intent_threshold else "drifted"

    def _fail(self, info: dict[str, Any], *, is_last: bool) -> Transition:
        # Without a reply the rewording failed: from the second time on another seed is drawn.
        self.redrawn += self.attempt > 0 and not info["reply"]
        self.attempt += 1
        return Transition(
            observation=self.observe(),
            reward=0.0,
            terminated=False,
            truncated=is_last or self.attempt >= MOST_ATTEMPTS,
            info=info,
        )

    def _info(
        self, action: int, rewrite: Completion, reply: Completion | None, verdict: Verdict
    ) -> dict[str, Any]:
        """Every key of a step's info, as if what was written had not been adopted."""
        usages = [each.usage or Usage() for each in (rewrite, reply) if each]
        return {
            "original_query": self.original,
            "guard": self.original in self.rules.guards,
            "query_before": self.query,
            "mutated_query": rewrite.text,
            "mutator": "" if action == LOOK else self.rules.mutator(action).name,
            "reply": reply.text if reply else "",
            "reply_truncated": reply.truncated if reply else False,
            "episode_number": self.number,
            "step_number": self.step_count,
            "attempt": self.attempt,
            "adopted": False,
            "rejected": "",
            "intent_similarity": 0.0,
            "outcome": verdict.outcome,
            "partial": verdict.partial,
            "undetermined": verdict.undetermined,
            "success": verdict.success,
            "reward": float(verdict.reward),
            "reward_parts": {name: float(value) for name, value in verdict.parts.items()},
            "unscored": verdict.outcome == "unscored",
            "error": verdict.error or "",
            "usage": {name: float(sum(getattr(usage, name) for usage in usages)) for name in USAGE},
        }


def begin_together(episodes: Sequence[Episode], models: ModelCalls) -> list[Vector]:
    """Embed what N episodes know, new or restored ones; returns their observations, (size,) each.

    Raises:
        OllamaError: a query could not be embedded.
    """
    texts = list(dict.fromkeys(text for episode in episodes for text in episode.texts))
    embeddings = dict(zip(texts, models.embed(texts), strict=True))
    return [episode.know(embeddings) for episode in episodes]


def reword_together(
    episodes: Sequence[Episode], actions: Sequence[int], models: ModelCalls, max_workers: int = 1
) -> list[Rewording]:
    """Reword the queries of N episodes, which stay as they are; see `step_together`."""
    pairs = list(zip(episodes, actions, strict=True))
    rewrites = models.reword([each.rewrite(action) for each, action in pairs], max_workers)
    written = [rewrite.text or each.query for each, rewrite in zip(episodes, rewrites, strict=True)]
    # What failed is not embedded: the query stands in its place, and is known.
    embeddings = models.embed(written)
    return [
        each.decide(action, rewrite, embedding)
        for (each, action), rewrite, embedding in zip(pairs, rewrites, embeddings, strict=True)
    ]


def step_together(
    episodes: Sequence[Episode], actions: Sequence[int], models: ModelCalls, max_workers: int = 1
) -> list[Transition]:
    """One step of N episodes: all rewordings, then all questions, then all verdicts.

    At most `max_workers` calls of a stage are under way at once.
    """
    pairs = list(zip(episodes, actions, strict=True))
    going = [(each, action) for each, action in pairs if not each.ends_by(action)]
    played = iter(_play_together(going, models, max_workers))
    return [each.leave(action) if each.ends_by(action) else next(played) for each, action in pairs]


def _play_together(
    pairs: Sequence[tuple[Episode, int]], models: ModelCalls, max_workers: int
) -> list[Transition]:
    """`step_together` of episodes, each with its action, none of which ends without a call."""
    episodes, actions = [each for each, _ in pairs], [action for _, action in pairs]
    rewordings = reword_together(episodes, actions, models, max_workers)
    asking = [
        (each, made) for each, made in zip(episodes, rewordings, strict=True) if not made.error
    ]
    questions = [episode.question(made) for episode, made in asking]
    replies = models.ask(questions, max_workers)
    near = [episode.similarity(made) for episode, made in asking]
    ends = iter(zip(replies, models.score(questions, replies, near, max_workers), strict=True))
    steps = []
    for (episode, action), made in zip(pairs, rewordings, strict=True):
        if made.error:
            reply, verdict = None, _verdict_without(made.error, made.rewrite)
        else:
            reply, verdict = next(ends)
        steps.append(episode.close(action, made, reply, verdict))
    return steps


def restored_episode(rules: Rules, state: Mapping[str, Any]) -> Episode:
    """The episode of a state; its embeddings come back with `begin_together`."""
    memory = dict(state["memory"])
    memory |= {name: frozenset(memory[name]) for name in ("tried", "idle")}
    rest = dict(state) | {"earlier": tuple(state["earlier"]), "memory": Memory(**memory)}
    return Episode(rules=rules, **rest)


def _verdict_without(error: OllamaError, rewrite: Completion) -> Verdict:
    """The verdict where there is no rewording, for the call failed or could not be embedded.

    Another attempt rewords with another seed. So the step is tried again after a reply that cannot
    be used, and after one that could not be embedded.
    """
    again = error.retryable or isinstance(error, BadReplyError) or rewrite.error is None
    return replace(unscored(error), permanent=not again)


def remembered_reward(scored: Mapping[str, Any]) -> float:
    """What an episode remembers of a step's reward, by its info or its line.

    Of a guard query it is what another would have earned: which it is, is for the policy to learn.
    """
    parts = scored["reward_parts"]
    if "pays" not in parts:
        return float(scored["reward"])
    earned = parts["answered"] * parts.get("right", 1.0) * parts["intent_kept"]
    return float(earned - parts["step_cost"])


def label_of(scored: Mapping[str, Any]) -> str:
    """What an episode remembers of a scored reply, by the fields of its verdict or its line."""
    if scored["undetermined"]:
        return "undetermined"
    if scored["outcome"] == "filtered":
        return "refused"
    return "partly_refused" if scored["partial"] else str(scored["outcome"])
