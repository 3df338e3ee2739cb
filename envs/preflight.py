"""The preflight checks of a run: its longest queries, and the first question to each of its models.

What is wrong is a line in the first seconds. The replies stand in the run's log like all others: what the run
asks in the same words is not asked again, and nothing is by a run that is gone on with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from envs.answering import Answerer
from envs.episode import Ask, Rewrite
from envs.mission import QueryConfig
from envs.queries import QueryFileError, load_queries
from mutators.mutator import Mutator
from ollama_utils.batching import batch_encode_queries
from ollama_utils.checkup import check_context, check_reply
from ollama_utils.encoders import Encoder
from ollama_utils.errors import EncodingError, ModelMissingError, PromptTooLongError
from records.errors import UserError
from records.terminal import write_stderr
from scorers.reward import WordingScorer

MOST_TRIED = 32
"""The longest queries by bytes, and the longest by characters, which show what the encoder takes."""
MOST_NAMED = 5
"""Queries that cannot be embedded, of which the message names no more."""


def check_lengths(encoder: Encoder, queries: Sequence[str], config: QueryConfig) -> None:
    """Check that the encoder takes the longest queries.

    Args:
        encoder: the run's.
        queries: all of the run's.
        config: where they were read, for the message.

    Raises:
        UserError: some are too long for the encoder's model; it names their rows.
    """
    by_bytes = sorted(set(queries), key=lambda query: len(query.encode()))[-MOST_TRIED:]
    longest = sorted({*by_bytes, *sorted(set(queries), key=len)[-MOST_TRIED:]})
    failed: dict[str, str] = {}
    try:
        batch_encode_queries(encoder, longest)
    except EncodingError as error:  # what else fails may pass when the run tries it
        failed = {
            longest[place]: why.words or str(why)
            for place, why in error.failures.items()
            if isinstance(why, PromptTooLongError)
        }
    if not failed:
        return
    rows: dict[str, int] = {}
    with suppress(QueryFileError):  # those of a run that is gone on with stand elsewhere
        read = load_queries(config.queries, prompt_column=config.prompt_column)
        rows = {query.text: query.row for query in read}
    named = [f"row {rows[query]}" if query in rows else repr(query[:40]) for query in failed]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    raise UserError(
        f"{config.queries or 'the queries'}, {', '.join(named[:MOST_NAMED])}{more}: too long for --encoder "
        f"{encoder.name} ({next(iter(failed.values()))!r}): shorten them, leave them out, or name another"
    )


def ask_first(
    answerer: Answerer,
    mutators: Sequence[Mutator],
    queries: Sequence[str],
    report: Callable[[str], None] = write_stderr,
) -> None:
    """Ask each role its first question, and say what is wrong.

    Args:
        answerer: the run's.
        mutators: those that may be played; the first that asks a model rewords the first query.
        queries: the run's.
        report: is given a line for each thing that is wrong.

    Raises:
        UserError: a model is not there, or the server wants another key: nothing could come of the run.
        RunStoppedError: no server was there for too long.
    """
    query, dispatcher, scorer = queries[0], answerer.dispatcher, answerer.scorer
    question = answerer.ask_call(Ask(query=query, seed=0))
    reply = dispatcher.generate(question)
    check_reply("target", reply, report)
    longest = max(queries, key=lambda query: len(query.encode()))
    check_context(dispatcher, question, reply, longest, report)
    asked = query
    for mutator in [mutator for mutator in mutators if mutator.kind == "model"][:1]:
        rewrite = Rewrite(mutator=mutator, query=query, earlier=(), seed=answerer.models.seed)
        rewording = dispatcher.generate(answerer.rewrite_call(rewrite))
        check_reply("mutator", rewording, report)
        if isinstance(scorer, WordingScorer) and scorer.intent_judge:  # which is asked of these alone
            asked = rewording.text or query
    if not reply.error and (error := scorer(query, asked, reply, 1.0).error):
        if error.startswith(ModelMissingError.__name__):
            raise UserError(error)
        report(f"the first verdict failed: {error}")
