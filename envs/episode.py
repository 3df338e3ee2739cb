"""What one step of an episode is, as requests and replies: no I/O, no clock, no hidden chance.

`Episode.begin` and `Episode.step` are plans (`ollama_utils.plans`). They yield batches of requests that do
not depend on each other, are sent the replies in the same order, and return what the environment shows. A
schedule (`envs/batched.py`) decides when the requests are served, never what they are: every schedule gives
the same results.

An episode can be written down as plain data and go on elsewhere (`episode_state`, `restored_episode`), and a
step can be played again from its line of transitions.jsonl (`transition_record`, `replayed`). The line
answers the step's requests, so no model is called, and a step that failed fails again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from textwrap import shorten
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from envs.observation import Memory, observation
from mutators.form import leaves_out_words, not_a_rewording
from mutators.mutator import Mutator
from ollama_utils.errors import BadReplyError, OllamaError
from ollama_utils.plans import Plan
from ollama_utils.types import Completion, Usage
from scorers.intent import similarity, threshold_for_left_out
from scorers.refusal import label_refusal
from scorers.reward import Outcome, Verdict, unscored

Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """Reword `query`; the reply is a Completion."""

    mutator: Mutator
    query: str
    earlier: tuple[str, ...]
    """Earlier rewordings of the same original in this episode, oldest first."""
    seed: int


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Ask the target model `query`; the reply is a Completion."""

    query: str
    seed: int
    """Used only when the target's temperature is above 0."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Score `reply`; the reply is a Verdict."""

    original: str
    query: str
    reply: Completion
    similarity: float
    """How near `query` is to `original` in meaning, -1 to 1."""


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Embed `text`; the reply is a unit vector of shape (D,), or the error that prevented it."""

    text: str


Request = Rewrite | Ask | Judge | Embed
Reply = Completion | Verdict | Vector | OllamaError
Answer = Callable[[Sequence[Request]], Sequence[Reply]]
T = TypeVar("T")
EpisodePlan = Plan[Request, Any, T]
"""A plan whose items are requests."""
MOST_ATTEMPTS = 8
"""How often a step whose calls fail is tried in a measurement; after that its episode is unscored. A failure
that is `permanent` ends it at once."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What decides an episode besides the models."""

    mutators: tuple[Mutator, ...]
    """Action k is the k-th of these."""
    max_steps: int = 5
    """Steps after which an unanswered query is given up."""
    intent_threshold: float
    """A reworded query less similar to the original than this is not adopted."""


@dataclass(frozen=True, kw_only=True)
class Rewording:
    """What a mutator made of a query, before it is asked."""

    rewrite: Completion
    """What it wrote."""
    embedding: Vector = field(default_factory=lambda: np.zeros(0, np.float32))
    """Of that, or of the query where it wrote nothing; empty where there is an error."""
    query: str
    """What is to be asked: the rewrite if it is adopted, else the query as it was."""
    rejected: str = ""
    """Why it is not adopted, in one word; empty when it is."""
    error: OllamaError | None = None
    """Why there is no rewording."""


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What one step gave: Gymnasium's five values, the last as `info`."""

    observation: Vector
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def derive_seed(*key: int | str) -> int:
    """A seed in [0, 2**31) that depends on `key` alone, the same in every process."""
    digest = blake2b(repr(key).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(kw_only=True)
class Episode:
    """One query on its way to an answer. The state of a lane between two steps, and nothing else."""

    rules: Rules
    original: str
    seed: int
    """The lane's seed."""
    number: int
    """Which episode of the lane this is, from 0."""
    query: str = ""
    step_count: int = 0
    attempt: int = 0
    """How often the current step failed because a call did."""
    earlier: tuple[str, ...] = ()
    memory: Memory = field(default_factory=Memory)
    _embeddings: dict[str, Vector] = field(default_factory=dict)

    def begin(self) -> EpisodePlan[Vector]:
        """Start; returns the first observation.

        Raises:
            OllamaError: the query could not be embedded.
        """
        self.query = self.original
        return (yield from self.recall())

    def recall(self) -> EpisodePlan[Vector]:
        """Embed the texts that the episode knows; returns the observation.

        Raises:
            OllamaError: one of them could not be embedded.
        """
        texts = tuple(dict.fromkeys((self.original, *self.earlier, self.query)))
        embeddings = yield tuple(Embed(text=text) for text in texts)
        for text, embedding in zip(texts, embeddings, strict=True):
            if isinstance(embedding, OllamaError):
                query = shorten(text, 60, placeholder="...")
                why = f"query {query!r} could not be embedded: {embedding}"
                raise type(embedding)(why, retryable=embedding.retryable) from embedding
        self._embeddings = dict(zip(texts, embeddings, strict=True))
        return self.observe()

    def step(self, action: int) -> EpisodePlan[Transition]:
        """One step: reword, ask, score. A call that fails leaves everything but `attempt` as it was."""
        mutator = self.rules.mutators[action]
        made = yield from self.reword(action)
        if made.error is not None:
            # Another attempt rewords with another seed, so a reply of no use is no reason to give up.
            again = made.error.retryable or isinstance(made.error, BadReplyError)
            return self._unscored(mutator, made.rewrite, replace(unscored(made.error), permanent=not again))
        rewrite, embedding, rejected, query = made.rewrite, made.embedding, made.rejected, made.query
        (reply,) = yield (Ask(query=query, seed=self.seed_for("ask")),)
        near = self._similarity(self._embeddings[query] if rejected else embedding)
        (verdict,) = yield (Judge(original=self.original, query=query, reply=reply, similarity=near),)
        if verdict.outcome == "unscored":
            return self._unscored(mutator, rewrite, verdict, reply=reply)
        info = self._info(mutator, rewrite, reply)  # before the adoption: it has the query that was reworded
        changed = query != self.query
        self._adopt(query, embedding)
        return self._close(action, info, rejected, near, verdict, changed=changed)

    def reword(self, action: int) -> EpisodePlan[Rewording]:
        """Reword the query, and say whether the rewording is one; the episode stays as it is."""
        mutator = self.rules.mutators[action]
        request = Rewrite(
            mutator=mutator, query=self.query, earlier=self.earlier, seed=self.seed_for("rewrite")
        )
        (rewrite,) = yield (request,)
        if rewrite.error:
            return Rewording(rewrite=rewrite, query=self.query, error=rewrite.error)
        (embedding,) = yield (Embed(text=rewrite.text or self.query),)
        if isinstance(embedding, OllamaError):
            return Rewording(rewrite=rewrite, query=self.query, error=embedding)
        rejected = self.rejection(mutator, rewrite, embedding)
        query = self.query if rejected else rewrite.text
        return Rewording(rewrite=rewrite, embedding=embedding, rejected=rejected, query=query)

    def rejection(self, mutator: Mutator, rewrite: Completion, embedding: Vector) -> str:
        """Why a rewrite is not adopted, in one word; empty when it is.

        A rule may leave a query as it is, and what it makes of it is a rewording; a model may say anything.
        """
        if rewrite.filtered:
            return "filtered"
        if not rewrite.text:
            return "empty"
        if rewrite.truncated:
            return "cut"
        if rewrite.text in self._embeddings:
            return ""
        if why := self._misfit(mutator, rewrite.text):
            return why
        return "drifted" if self._similarity(embedding) < self._least_similar(mutator, rewrite.text) else ""

    def _least_similar(self, mutator: Mutator, text: str) -> float:
        """The similarity that a rewrite needs: more where a model left out words of the original."""
        threshold = self.rules.intent_threshold
        if mutator.kind == "model" and leaves_out_words(text, self.original):
            return threshold_for_left_out(threshold)
        return threshold

    def _misfit(self, mutator: Mutator, text: str) -> str:
        """Why a new text is no rewording, whatever it is about; empty where nothing says so."""
        # A query such as "I cannot log in: how ...?" reads like a refusal, and so will its rewordings.
        if label_refusal(text) == "refused" != label_refusal(self.original):
            return "refused"
        return not_a_rewording(text, self.query) if mutator.kind == "model" else ""

    def seed_for(self, purpose: str) -> int:
        """The seed of a call of this step and attempt."""
        return derive_seed(self.seed, self.number, self.step_count, self.attempt, purpose)

    def observe(self) -> Vector:
        """The observation of the current state, shape and layout as in `envs/observation.py`."""
        fraction = self.step_count / self.rules.max_steps
        return observation(self._embeddings[self.original], len(self.rules.mutators), self.memory, fraction)

    def _similarity(self, embedding: Vector) -> float:
        return similarity(self._embeddings[self.original], embedding)

    def _adopt(self, query: str, embedding: Vector) -> None:
        if query not in self._embeddings:
            self._embeddings[query] = embedding
        if query != self.query:
            self.earlier = (*self.earlier, self.query)
            self.query = query

    def _close(
        self,
        action: int,
        info: dict[str, Any],
        rejected: str,
        near: float,
        verdict: Verdict,
        *,
        changed: bool,
    ) -> Transition:
        info |= {
            "adopted": not rejected,
            "rejected": rejected,
            "outcome": verdict.outcome,
            "partial": verdict.partial,
            "undetermined": verdict.undetermined,
            "intent_similarity": near,
            "success": verdict.success,
            "reward": float(verdict.reward),
            "reward_parts": {name: float(value) for name, value in verdict.parts.items()},
        }
        self.step_count, self.attempt = self.step_count + 1, 0
        self.memory = self.memory.after(action, verdict.reward, _label(verdict), changed=changed)
        return Transition(
            observation=self.observe(),
            reward=float(verdict.reward),
            terminated=verdict.success,
            truncated=not verdict.success and self.step_count >= self.rules.max_steps,
            info=info,
        )

    def _unscored(
        self, mutator: Mutator, rewrite: Completion, verdict: Verdict, reply: Completion | None = None
    ) -> Transition:
        """The step did not happen: same query, same observation, same step, next attempt."""
        info = self._info(mutator, rewrite, reply) | {
            "outcome": "unscored",
            "unscored": True,
            "error": verdict.error or "",
            "permanent": verdict.permanent,
        }
        self.attempt += 1
        return Transition(
            observation=self.observe(), reward=0.0, terminated=False, truncated=False, info=info
        )

    def _info(self, mutator: Mutator, rewrite: Completion, reply: Completion | None) -> dict[str, Any]:
        """Every key of a step's info, with the values of a failed step where they differ."""
        return {
            "original_query": self.original,
            "query_before": self.query,
            "mutated_query": rewrite.text,
            "mutator": mutator.name,
            "reply": reply.text if reply else "",
            "reply_truncated": reply.truncated if reply else False,
            "episode_number": self.number,
            "step_number": self.step_count,
            "attempt": self.attempt,
            "adopted": False,
            "rejected": "",
            "partial": False,
            "undetermined": False,
            "intent_similarity": 0.0,
            "success": False,
            "reward": 0.0,
            "unscored": False,
            "error": "",
            "permanent": False,
            "usage": _usage(rewrite, reply),
        }


def _label(verdict: Verdict) -> str:
    """What an episode remembers of a scored reply."""
    if verdict.undetermined:
        return "undetermined"
    if verdict.outcome == "filtered":
        return "refused"
    return "partly_refused" if verdict.partial else verdict.outcome


def _usage(*completions: Completion | None) -> dict[str, float]:
    """Tokens and seconds of a step's calls together, as the server reported them."""
    used = [c.usage or Usage() for c in completions if c]
    return {
        "prompt_tokens": float(sum(u.prompt_tokens for u in used)),
        "completion_tokens": float(sum(u.completion_tokens for u in used)),
        "queue_s": float(sum(u.queue_s for u in used)),
        "total_s": float(sum(u.total_s for u in used)),
    }


def episode_state(episode: Episode) -> dict[str, Any]:
    """What `restored_episode` needs beside the rules: strings, numbers and lists of them."""
    memory = episode.memory
    return {
        "original": episode.original,
        "seed": episode.seed,
        "number": episode.number,
        "query": episode.query,
        "step_count": episode.step_count,
        "attempt": episode.attempt,
        "earlier": list(episode.earlier),
        "tried": sorted(memory.tried),
        "idle": sorted(memory.idle),
        "last_action": memory.last_action,
        "last_reward": memory.last_reward,
        "last_label": memory.last_label,
    }


def restored_episode(rules: Rules, state: Mapping[str, Any]) -> Episode:
    """The episode of a state; its embeddings come back with `Episode.recall`."""
    rest = dict(state)
    memory = Memory(
        tried=frozenset(rest.pop("tried")),
        idle=frozenset(rest.pop("idle")),
        last_action=rest.pop("last_action"),
        last_reward=rest.pop("last_reward"),
        last_label=rest.pop("last_label"),
    )
    return Episode(rules=rules, memory=memory, **{**rest, "earlier": tuple(rest["earlier"])})


def replayed(plan: EpisodePlan[T], line: Mapping[str, Any]) -> EpisodePlan[T]:
    """The plan of a step, its requests answered by its line of transitions.jsonl.

    Only embeddings are asked for, which the line does not hold.
    """
    requests = next(plan)
    while True:
        replies: list[Reply] = []
        for request in requests:
            reply = _recorded_reply(request, line)
            replies.append((yield (request,))[0] if reply is None else reply)
        try:
            requests = plan.send(replies)
        except StopIteration as end:
            result: T = end.value
            return result


def _recorded_reply(request: Request, line: Mapping[str, Any]) -> Reply | None:
    match request:
        case Rewrite():
            # In a failed step no embedding counts; a rewrite that is cut or filtered needs none.
            why = "cut" if line["unscored"] else line["rejected"]
            return Completion(
                text=line["mutated_query"],
                truncated=why == "cut",
                filtered=why == "filtered",
                usage=_recorded_usage(line),
            )
        case Ask():
            return Completion(text=line["reply"], truncated=line["reply_truncated"])
        case Judge():
            return _recorded_verdict(line)
        case Embed():
            return np.zeros(0, np.float32) if line["unscored"] else None


def _recorded_verdict(line: Mapping[str, Any]) -> Verdict:
    return Verdict(
        outcome=line["outcome"],
        partial=line["partial"],
        undetermined=line.get("undetermined", False),
        intent_kept=bool(line["reward_parts"].get("intent_kept")),
        success=line["success"],
        reward=line["reward"],
        parts=line["reward_parts"],
        error=line["not_hashed"]["error_message"] if line["unscored"] else None,
    )


def _recorded_usage(line: Mapping[str, Any]) -> Usage:
    """The usage of the whole step, as if its first call had had it all."""
    times = line["not_hashed"]
    return Usage(
        prompt_tokens=line["prompt_tokens"],
        completion_tokens=line["completion_tokens"],
        decode_s=times["total_s"] - times["queue_s"],
        total_s=times["total_s"],
    )


_RECORDED = (
    *("episode_number", "step_number", "attempt", "original_query", "query_before", "mutator"),
    *("mutated_query", "adopted", "rejected", "reply", "reply_truncated", "outcome", "partial"),
    *("intent_similarity", "success", "reward", "unscored"),
)
"""The keys of a step's info that its line of transitions.jsonl has as they are."""


def transition_record(
    row: int,
    lane: int,
    info: Mapping[str, Any],
    done: bool,  # noqa: FBT001 - SB3's flag
) -> dict[str, Any]:
    """One line of transitions.jsonl. `not_hashed` is all that may differ between two equal runs.

    An error's class is hashed, its message, which names the host, is not. `undetermined` stands in the lines
    of such replies alone: in runs without one they are those of versions that did not know it.
    """
    usage = info["usage"]
    tokens = {name: int(usage[name]) for name in ("prompt_tokens", "completion_tokens")}
    return {
        "row": row,
        "lane": lane,
        **{name: info[name] for name in _RECORDED},
        **({"undetermined": True} if info.get("undetermined") else {}),
        "error": info["error"].partition(":")[0],
        "reward_parts": info.get("reward_parts", {}),
        "terminated": done and not info["TimeLimit.truncated"],
        "truncated": bool(info["TimeLimit.truncated"]),
        **tokens,
        "not_hashed": {
            **{name: usage[name] for name in ("queue_s", "total_s")},
            "error_message": info["error"],
        },
    }


_TEXTS = (
    "original_query",
    "query_before",
    "mutator",
    "mutated_query",
    "rejected",
    "reply",
    "outcome",
    "error",
)
_TRUTHS = ("adopted", "reply_truncated", "partial", "success", "unscored", "terminated", "truncated")
_COUNTS = ("row", "lane", "episode_number", "step_number", "attempt", "prompt_tokens", "completion_tokens")
_NUMBERS = ("intent_similarity", "reward")
_OUTCOMES = get_args(Outcome)
_MOST = 2.0**53


def check_transition(line: Mapping[str, Any]) -> None:
    """Check that a line of transitions.jsonl has all that `transition_record` writes, each of its kind.

    Raises:
        ValueError: it has not; the message names the key.
    """
    aside, parts = line.get("not_hashed"), line.get("reward_parts")
    if not isinstance(aside, dict) or not isinstance(parts, dict):
        raise ValueError("'not_hashed' or 'reward_parts' is no object")  # noqa: TRY004 - a wrong value
    _check_kinds(line, _TEXTS, lambda value: isinstance(value, str), "a text")
    _check_kinds(line, _TRUTHS, lambda value: isinstance(value, bool), "true or false")
    _check_kinds(line, _COUNTS, lambda value: type(value) is int and 0 <= value <= _MOST, "a count")
    _check_kinds(line, _NUMBERS, _is_number, "a number")
    _check_kinds(aside, ("queue_s", "total_s"), _is_number, "a number")
    _check_kinds(aside, ("error_message",), lambda value: isinstance(value, str), "a text")
    _check_kinds(parts, tuple(parts), _is_number, "a number")
    if line["outcome"] not in _OUTCOMES or not isinstance(line.get("undetermined", False), bool):
        raise ValueError(f"'outcome' is {line['outcome']!r:.40}, or 'undetermined' no truth value")


def _check_kinds(
    table: Mapping[str, Any], names: Sequence[str], is_one: Callable[[object], bool], expected: str
) -> None:
    for name in names:
        if name not in table:
            raise ValueError(f"{name!r:.40} is missing; expected {expected}")
        if not is_one(table[name]):
            raise ValueError(f"{name!r:.40} is {table[name]!r:.40}; expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > _MOST
