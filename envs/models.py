"""What episodes ask of models, many at once: lists in, lists out, by the three batch functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.mission import MissionConfig
from envs.queries import Chat
from mutators.cleaning import clean
from mutators.mutator import Mutator
from ollama_utils.batching import (
    batch_encode_queries,
    batch_mutate_queries,
    batch_query_target_model,
    with_prompt,
)
from ollama_utils.connect import Roles
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.errors import BadReplyError, EncodingError, OllamaError
from ollama_utils.parallel import in_parallel
from ollama_utils.types import Call, Completion, Prompt, Usage, think_of
from scorers.reward import Scorer, Verdict

Vector = NDArray[np.float32]
REWRITE_TEMPERATURE = 0.5
"""Two tries differ, and a small model still keeps to the query."""


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A query that is to be reworded."""

    mutator: Mutator
    query: str
    earlier: tuple[str, ...] = ()
    """Earlier rewordings of the same original in this episode, oldest first."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A query that the target is to be asked: the original, or a rewording of it."""

    original: str
    query: str
    seed: int = 0
    """Counts only where the target's temperature is above 0."""


@dataclass(frozen=True, kw_only=True)
class ModelCalls:
    """The calls of an environment; a call that fails spoils its own item alone.

    Each method keeps the order of its list, and raises only what ends a run (`OutageError`, ...).
    Its `max_workers` is the most calls at once; a list of one is done on the caller's thread.
    """

    mission: MissionConfig
    """How they are asked; at temperature 0 all questions to the target have one seed."""
    roles: Roles
    seed: int = 0
    dispatcher: Dispatcher
    encoder: Encoder
    scorer: Scorer
    chats: Mapping[str, Chat] = field(default_factory=dict)
    """By original query what the target reads before it, for queries that end a chat."""

    @property
    def _options(self) -> dict[str, Any]:
        """Ollama's options of every call, the same ones always: a change reloads the model."""
        runner = {"num_ctx": self.mission.num_ctx} if self.mission.num_ctx else {}
        return runner | {"num_predict": self.mission.num_predict}

    def reword(self, rewrites: Sequence[Rewrite], max_workers: int = 1) -> list[Completion]:
        """The rewordings, by a model or by rule; where a call failed, the query as it was.

        What some mutators go on with (`Mutator.then`) is a second round, for all rows at once.
        """
        by_model = [rewrite for rewrite in rewrites if rewrite.mutator.kind == "model"]
        replies = iter(
            batch_mutate_queries(
                self.dispatcher,
                [rewrite.query for rewrite in by_model],
                [self._prompt(rewrite) for rewrite in by_model],
                model=self.roles.mutator,
                seeds=[rewrite.seed for rewrite in by_model],
                options=self._options,
                max_workers=max_workers,
            )
        )
        done = []
        for rewrite in rewrites:
            if rewrite.mutator.kind == "model":
                reply = next(replies)
                text = reply.text if reply.error else clean(reply.text, rewrite.query)
                done.append(replace(reply, text=text))
            else:
                text = rewrite.mutator.apply(rewrite.query, rewrite.earlier, rewrite.seed)
                done.append(Completion(text=text, attempts=0))
        more = {row: going for row, going in enumerate(map(_next, rewrites, done)) if going}
        seconds = self.reword([*more.values()], max_workers) if more else []
        for row, second in zip(more, seconds, strict=True):
            done[row] = _joined(done[row], second, rewrites[row].query)
        return done

    def embed(self, texts: Sequence[str]) -> list[Vector | OllamaError]:
        """Unit rows of shape (D,); where a text cannot be embedded, the error in its place."""
        if not texts:
            return []
        try:
            return list(batch_encode_queries(self.encoder, texts))
        except EncodingError as error:
            return [error.failures.get(place, row) for place, row in enumerate(error.rows)]

    def ask(self, questions: Sequence[Ask], max_workers: int = 1) -> list[Completion]:
        """The target's replies; where a call failed, `DEFAULT_REFUSAL`."""
        mission = self.mission
        draws = mission.target_temperature > 0
        return batch_query_target_model(
            self.dispatcher,
            [self._question(question) for question in questions],
            model=self.roles.target,
            system=mission.target_system,
            seeds=[question.seed if draws else self.seed for question in questions],
            options=self._options | {"temperature": mission.target_temperature},
            think=think_of(mission.think),
            max_workers=max_workers,
        )

    def score(
        self,
        questions: Sequence[Ask],
        replies: Sequence[Completion],
        similarities: Sequence[float],
        max_workers: int = 1,
    ) -> list[Verdict]:
        """What N replies are worth, given how near each query is to its original (-1 to 1)."""
        items = zip(questions, replies, similarities, strict=True)
        # A user's own scorer may raise.
        return in_parallel(lambda item: self._verdict(*item), items, max_workers)

    def call(self, question: Ask) -> Call:
        """The call that asks a question, as `ask` makes it."""
        shared = Call(
            model=self.roles.target,
            prompt="",
            system=self.mission.target_system,
            think=think_of(self.mission.think),
            options=self._options,
        )
        return with_prompt(shared, self._question(question))

    def _question(self, question: Ask) -> Prompt:
        """A question, and the chat that it ends."""
        chat = self.chats.get(question.original, Chat())
        return Prompt(text=question.query, system=chat.system, examples=chat.turns)

    def _verdict(self, question: Ask, reply: Completion, similarity: float) -> Verdict:
        verdict = self.scorer(question.original, question.query, reply, similarity)
        # At a temperature a server that heeds no seed draws another reply next time.
        draws = self.mission.target_temperature > 0 and isinstance(reply.error, BadReplyError)
        return replace(verdict, permanent=False) if draws else verdict

    def _prompt(self, rewrite: Rewrite) -> Prompt:
        prompt = rewrite.mutator.prompt(rewrite.query, rewrite.earlier, rewrite.seed)
        own = {**prompt.options, "temperature": REWRITE_TEMPERATURE}
        if self.mission.rewrite_num_predict is not None:
            own["num_predict"] = self.mission.rewrite_num_predict
        return replace(prompt, options=own)


def _next(rewrite: Rewrite, reply: Completion) -> Rewrite | None:
    """The second round of a rewording, if its mutator has one and the first gave a whole text."""
    then = rewrite.mutator.then
    if then is None or reply.error or reply.truncated or reply.filtered or not reply.text:
        return None
    earlier = (*rewrite.earlier, rewrite.query)
    return replace(rewrite, mutator=then, query=reply.text, earlier=earlier)


def _joined(first: Completion, second: Completion, query: str) -> Completion:
    """Two replies as one: the second, with what both took; where it failed, the query."""
    usages = [asdict(each.usage) for each in (first, second) if each.usage]
    usage = {name: sum(each[name] for each in usages) for name in usages[0]} if usages else None
    return replace(
        second,
        text=query if second.error else second.text,
        attempts=first.attempts + second.attempts,
        usage=Usage(**usage) if usage else None,
    )
