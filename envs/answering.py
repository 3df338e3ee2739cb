"""Serves the requests of an episode's plan: the one place where an environment meets the models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from envs.episode import Ask, Embed, Judge, Reply, Request, Rewrite
from mutators.cleaning import clean
from ollama_utils.batching import batch_encode_queries, batch_mutate_queries, batch_query_target_model
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.errors import EncodingError
from ollama_utils.parallel import map_parallel
from ollama_utils.types import Completion
from scorers.reward import Scorer, Verdict

REWRITE_TEMPERATURE = 0.8


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
    think: bool | None = None
    """Whether a thinking target thinks; None leaves it to the server."""
    seed: int = 0
    """The seed of the target's calls at temperature 0."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ollama options that every call carries, the same ones always (a change reloads the model)."""


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """Serves requests: model calls on the dispatcher, embeddings on the encoder, verdicts by the scorer."""

    models: Models
    dispatcher: Dispatcher
    encoder: Encoder
    scorer: Scorer

    def answer(self, requests: Sequence[Request], max_workers: int = 1) -> list[Reply]:
        """The replies in the order of the requests, those of one kind served together by `max_workers`."""
        replies: list[Reply | None] = [None] * len(requests)
        serve: dict[type, Callable[[list[Any], int], Sequence[Reply]]] = {
            Rewrite: self._rewrite,
            Embed: self._embed,
            Ask: self._ask,
            Judge: self._judge,
        }
        for kind, server in serve.items():
            places = [k for k, request in enumerate(requests) if type(request) is kind]
            if places:
                served = server([requests[k] for k in places], max_workers)
                for place, reply in zip(places, served, strict=True):
                    replies[place] = reply
        return cast("list[Reply]", replies)

    def _rewrite(self, requests: list[Rewrite], max_workers: int) -> list[Completion]:
        """Rule mutators cost no call; the others go to the mutator model together."""
        by_model = [r for r in requests if r.mutator.kind == "model"]
        completions = batch_mutate_queries(
            self.dispatcher,
            [r.query for r in by_model],
            [r.mutator.prompt(r.query, r.earlier, r.seed) for r in by_model],
            model=self.models.mutator,
            seeds=[r.seed for r in by_model],
            options={**self.models.options, "temperature": REWRITE_TEMPERATURE},
            max_workers=max_workers,
        )
        pairs = zip(by_model, completions, strict=True)
        cleaned = iter([c if c.error else replace(c, text=clean(c.text, r.query)) for r, c in pairs])
        return [
            next(cleaned)
            if r.mutator.kind == "model"
            else Completion(text=r.mutator.apply(r.query, r.earlier, r.seed), attempts=0)
            for r in requests
        ]

    def _ask(self, requests: list[Ask], max_workers: int) -> list[Completion]:
        models = self.models
        fixed = models.target_temperature == 0
        return batch_query_target_model(
            self.dispatcher,
            [r.query for r in requests],
            model=models.target,
            seeds=[models.seed if fixed else r.seed for r in requests],
            options={**models.options, "temperature": models.target_temperature},
            system=models.target_system,
            think=models.think,
            max_workers=max_workers,
        )

    def _judge(self, requests: list[Judge], max_workers: int) -> list[Verdict]:
        def judge(r: Judge) -> Verdict:
            return self.scorer(r.original, r.query, r.reply, r.similarity)

        return map_parallel(judge, requests, max_workers)

    def _embed(self, requests: list[Embed], _max_workers: int) -> list[Any]:
        """Rows of shape (D,); where a text cannot be encoded, the error in its place."""
        try:
            return list(batch_encode_queries(self.encoder, [r.text for r in requests]))
        except EncodingError as error:
            return [error.failures.get(place, row) for place, row in enumerate(error.rows)]
