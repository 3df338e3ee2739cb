"""Serves the requests of an episode's plan: the one place where an environment meets the models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from envs.episode import Answer, Ask, Embed, Judge, Reply, Request, Rewrite
from mutators.cleaning import clean
from ollama_utils.batching import batch_encode_queries, batch_mutate_queries, batch_query_target_model
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder, PrefetchingEncoder
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
        if len(requests) == 1:  # most requests of a lane
            return list(self._server(type(requests[0]))([requests[0]], max_workers))
        places: dict[type, list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault(type(request), []).append(place)
        replies: dict[int, Reply] = {}
        for kind, of_kind in places.items():
            served = self._server(kind)([requests[k] for k in of_kind], max_workers)
            replies.update(zip(of_kind, served, strict=True))
        return [replies[place] for place in range(len(requests))]

    def _server(self, kind: type) -> Callable[[list[Any], int], Sequence[Reply]]:
        """What serves the requests of one kind."""
        if kind is Rewrite:
            return self._rewrite
        if kind is Ask:
            return self._ask
        return self._judge if kind is Judge else self._embed

    def expect(self, query: str) -> None:
        """Have a query embedded that will be asked for later, by an encoder that can do so in spare time."""
        if self._prefetching:
            self._prefetching.prefetch([query])

    @cached_property
    def _prefetching(self) -> PrefetchingEncoder | None:
        return self.encoder if isinstance(self.encoder, PrefetchingEncoder) else None

    def _rewrite(self, requests: list[Rewrite], max_workers: int) -> list[Completion]:
        """Rule mutators cost no call; the others go to the mutator model together."""
        by_model = [r for r in requests if r.mutator.kind == "model"]
        replies = iter(self._rewrite_by_model(by_model, max_workers) if by_model else ())
        return [
            next(replies)
            if r.mutator.kind == "model"
            else Completion(text=r.mutator.apply(r.query, r.earlier, r.seed), attempts=0)
            for r in requests
        ]

    def _rewrite_by_model(self, by_model: list[Rewrite], max_workers: int) -> list[Completion]:
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
        return [c if c.error else replace(c, text=clean(c.text, r.query)) for r, c in pairs]

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


def limited(answer: Answer, most: int) -> Answer:
    """`answer`, with at most `most` threads at once in requests that may call a model."""
    gate = threading.Semaphore(most)

    def answer_in_turn(requests: Sequence[Request]) -> Sequence[Reply]:
        if not any(map(_calls_model, requests)):
            return answer(requests)
        with gate:
            return answer(requests)

    return answer_in_turn


def _calls_model(request: Request) -> bool:
    """Embeddings are not counted: those of all lanes are made together."""
    return not isinstance(request, Embed) and not (
        isinstance(request, Rewrite) and request.mutator.kind == "rule"
    )
