"""Answers the requests of an episode's plan: the one place where an environment meets the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envs.episode import Ask, Embed, Judge, Reply, Request, Rewrite
from mutators.cleaning import clean
from ollama_utils.batching import DEFAULT_REFUSAL, batch_encode_queries
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.errors import BadReplyError, EncodingError
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Call, Completion, Think
from scorers.reward import Scorer

REWRITE_TEMPERATURE = 0.5
"""Two tries differ, and a small model still keeps to the query."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Which models serve an environment, and how they are asked."""

    target: str
    """The model whose answers count."""
    mutator: str
    """The model that rewords queries."""
    target_system: str | None = None
    """The target's system prompt; None keeps the model's own."""
    target_temperature: float = 0.0
    """Above 0 every question carries its own derived seed."""
    think: Think | None = None
    """Whether a thinking target thinks; None leaves it to the server."""
    seed: int = 0
    """The seed of the target's calls at temperature 0."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ollama options that every call carries, the same ones always (a change reloads the model)."""
    rewrite_num_predict: int | None = None
    """The most tokens of a rewording; None leaves it to the mutator."""


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """Answers requests: model calls by the dispatcher, embeddings by the encoder, verdicts by the scorer."""

    models: Models
    dispatcher: Dispatcher
    encoder: Encoder
    scorer: Scorer

    def answer(self, requests: Sequence[Request], max_workers: int = 1) -> list[Reply]:
        """The replies in the order of the requests: embeddings together, the others `max_workers` at once."""
        if len(requests) == 1:  # nearly always, but in a phase
            return [self.answer_one(requests[0])]
        embeddings = iter(self._embed([r.text for r in requests if isinstance(r, Embed)]))
        others = iter(
            map_parallel(self.answer_one, [r for r in requests if not isinstance(r, Embed)], max_workers)
        )
        return [next(embeddings) if isinstance(r, Embed) else next(others) for r in requests]

    def answer_one(self, request: Request) -> Reply:
        """The reply to a request; rule mutators cost no call."""
        match request:
            case Rewrite(mutator=mutator):
                if mutator.kind == "rule":
                    text = mutator.apply(request.query, request.earlier, request.seed)
                    return Completion(text=text, attempts=0)
                rewrite = self.dispatcher.generate(self.rewrite_call(request))
                text = request.query if rewrite.error else clean(rewrite.text, request.query)
                return replace(rewrite, text=text)
            case Ask():
                reply = self.dispatcher.generate(self.ask_call(request))
                return replace(reply, text=DEFAULT_REFUSAL) if reply.error else reply
            case Judge(reply=reply):
                verdict = self.scorer(request.original, request.query, reply, request.similarity)
                # At a temperature the next attempt draws another reply.
                draws = self.models.target_temperature > 0 and isinstance(reply.error, BadReplyError)
                return replace(verdict, permanent=False) if draws else verdict
            case Embed():
                return self._embed([request.text])[0]

    def rewrite_call(self, request: Rewrite) -> Call:
        """The call that asks the mutator, for one of those that ask a model."""
        prompt = request.mutator.prompt(request.query, request.earlier, request.seed)
        own = {**prompt.options, "temperature": REWRITE_TEMPERATURE, "seed": request.seed}
        if self.models.rewrite_num_predict is not None:
            own["num_predict"] = self.models.rewrite_num_predict
        return Call(
            model=self.models.mutator,
            prompt=prompt.text,
            system=prompt.system,
            examples=prompt.examples,
            think=prompt.think,
            role="mutator",
            options={**self.models.options, **own},
        )

    def ask_call(self, request: Ask) -> Call:
        """The call that asks the target."""
        models = self.models
        seed = request.seed if models.target_temperature else models.seed
        return Call(
            model=models.target,
            prompt=request.query,
            system=models.target_system,
            think=models.think,
            options={**models.options, "temperature": models.target_temperature, "seed": seed},
        )

    def _embed(self, texts: Sequence[str]) -> list[Reply]:
        """Rows of shape (D,); where a text cannot be encoded, the error in its place."""
        if not texts:
            return []
        try:
            return list(batch_encode_queries(self.encoder, texts))
        except EncodingError as error:
            return [error.failures.get(place, row) for place, row in enumerate(error.rows)]
