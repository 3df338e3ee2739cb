"""Many queries at once, embedded or sent to a model: order kept, one failure spoils one item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.errors import BadReplyError, BadRequestError, EncodingError, OllamaError
from ollama_utils.parallel import in_parallel
from ollama_utils.types import Call, Completion, Prompt, Think, is_text

DEFAULT_REFUSAL = "I'm sorry, but I can't help with that."


def batch_encode_queries(encoder: Encoder, queries: Sequence[str]) -> NDArray[np.float32]:
    """The embeddings of N queries: (N, D) rows of length 1, in the order of the queries.

    Raises:
        EncodingError: some queries are not valid text, or the encoder has no finite row for them;
            it holds each one's error by its place, and the rows of the others.
    """
    failures: dict[int, OllamaError] = {
        place: BadRequestError(f"expected valid Unicode text, got {query!r}")
        for place, query in enumerate(queries)
        if not is_text(query)
    }
    places = [place for place in range(len(queries)) if place not in failures]
    try:
        given = encoder.encode([queries[place] for place in places])
    except EncodingError as error:
        given = error.rows
        failures |= {places[index]: failure for index, failure in error.failures.items()}
    rows = np.zeros((len(queries), encoder.dimension), dtype=np.float32)
    rows[places] = given
    for place in np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist():
        failures.setdefault(
            place, BadReplyError(f"encoder {encoder.name!r} gave numbers that are not finite")
        )
    if failures:
        raise EncodingError(rows, failures)
    return rows


def batch_mutate_queries(
    dispatcher: Dispatcher,
    queries: Sequence[str],
    prompts: Sequence[str | Prompt],
    *,
    model: str,
    seeds: Sequence[int] | None = None,
    options: Mapping[str, Any] | None = None,
    max_workers: int | None = 8,
) -> list[Completion]:
    """Have a model reword queries.

    Args:
        dispatcher: sends the calls.
        queries: N queries; a failed call leaves its query as it was, with `error` set.
        prompts: N whole prompts, each of which asks for the rewording of its query; what a `Prompt`
            sets takes precedence over what is set here for all.
        model: the mutator.
        seeds: N seeds, each of which goes into its call's options; None for none.
        options: Ollama's options for every call.
        max_workers: the most calls at once; None leaves it to the dispatcher.

    Raises:
        ValueError: the lengths differ.
        OutageError, CallCancelledError, ...: what ends the run, see `Dispatcher.generate`.
    """
    if len(queries) != len(prompts):
        raise ValueError(f"expected one prompt a query, got {len(queries)} and {len(prompts)}")
    shared = Call(model=model, prompt="", options=options or {}, role="mutator")
    return _generate(dispatcher, prompts, queries, shared, seeds, max_workers)


def batch_query_target_model(
    dispatcher: Dispatcher,
    prompts: Sequence[str | Prompt],
    *,
    model: str,
    system: str | None = None,
    seeds: Sequence[int] | None = None,
    options: Mapping[str, Any] | None = None,
    think: Think | None = None,
    max_workers: int | None = 8,
) -> list[Completion]:
    """Send N questions to the target model.

    A failed call gives DEFAULT_REFUSAL as its text, with `error` set.

    Args:
        dispatcher: sends the calls.
        prompts: N questions; see `batch_mutate_queries`, as for the other arguments.
        model: the target.
        system: the system prompt; None keeps the model's own.
        seeds: N seeds.
        options: Ollama's options for every call.
        think: whether a thinking model thinks, or how much; None leaves it to the server.
        max_workers: the most calls at once.

    Raises:
        ValueError: the lengths differ.
    """
    shared = Call(model=model, prompt="", system=system, options=options or {}, think=think)
    fallbacks = [DEFAULT_REFUSAL] * len(prompts)
    return _generate(dispatcher, prompts, fallbacks, shared, seeds, max_workers)


def with_prompt(shared: Call, prompt: str | Prompt) -> Call:
    """A call with a prompt of its own; what that sets takes precedence."""
    own = prompt if isinstance(prompt, Prompt) else Prompt(text=prompt)
    return replace(
        shared,
        prompt=own.text,
        examples=own.examples,
        options={**shared.options, **own.options},
        system=shared.system if own.system is None else own.system,
        think=shared.think if own.think is None else own.think,
    )


def _generate(
    dispatcher: Dispatcher,
    prompts: Sequence[str | Prompt],
    fallbacks: Sequence[str],
    shared: Call,
    seeds: Sequence[int] | None,
    max_workers: int | None,
) -> list[Completion]:
    """The replies to N prompts; the text of one that failed is its fallback."""
    if seeds is not None and len(seeds) != len(prompts):
        raise ValueError(f"expected one seed a call, got {len(seeds)} for {len(prompts)}")
    calls = [with_prompt(shared, prompt) for prompt in prompts]
    if seeds is not None:
        calls = [
            replace(call, options={**call.options, "seed": int(seed)})
            for call, seed in zip(calls, seeds, strict=True)
        ]
    completions = in_parallel(dispatcher.generate, calls, max_workers)
    return [
        replace(completion, text=fallback) if completion.error else completion
        for completion, fallback in zip(completions, fallbacks, strict=True)
    ]
