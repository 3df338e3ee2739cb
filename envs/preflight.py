"""Checks before a run: its longest queries, and a first question to each of its models.

The replies go to the run's log like all others, so a run that is resumed asks nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from envs.models import Ask, ModelCalls, Rewrite
from envs.queries import load_queries
from envs.query_files import QueryFileError
from envs.query_sets import QueryConfig
from mutators.mutator import Mutator
from ollama_utils.batching import batch_encode_queries
from ollama_utils.checkup import check_context, check_reply
from ollama_utils.encoders import Encoder
from ollama_utils.errors import (
    EncodingError,
    ModelMissingError,
    OllamaError,
    PromptTooLongError,
)
from records.errors import UserError
from records.terminal import write_stderr
from scorers.reward import unscored

MOST_TRIED = 32
"""How many of the longest queries are tried, by bytes and by characters."""
MOST_ROWS_NAMED = 5
"""How many queries the message names."""


def check_lengths(encoder: Encoder, queries: Sequence[str], config: QueryConfig) -> None:
    """Check that the encoder takes the longest queries.

    Raises:
        UserError: some are too long for the encoder's model; it names their rows.
    """
    distinct = set(queries)
    by_bytes = sorted(distinct, key=lambda query: len(query.encode()))[-MOST_TRIED:]
    longest = sorted({*by_bytes, *sorted(distinct, key=len)[-MOST_TRIED:]})
    why: dict[int, PromptTooLongError] = {}
    try:
        batch_encode_queries(encoder, longest)
    except EncodingError as error:  # what else fails may pass when the run tries it
        why = {k: e for k, e in error.failures.items() if isinstance(e, PromptTooLongError)}
    if not why:
        return
    rows: dict[str, int] = {}
    with suppress(QueryFileError):  # a resumed run has its queries in its folder
        read = load_queries(config.queries, prompt_column=config.prompt_column)
        rows = {query.text: query.row for query in read}
    failed = [longest[place] for place in why]
    named = [f"row {rows[query]}" if query in rows else repr(query[:40]) for query in failed]
    more = f" and {len(named) - MOST_ROWS_NAMED} more" if len(named) > MOST_ROWS_NAMED else ""
    where = f"{config.queries or 'the queries'}, {', '.join(named[:MOST_ROWS_NAMED])}{more}"
    first = next(iter(why.values()))
    raise UserError(
        f"{where}: too long for --encoder {encoder.name} ({first.words or str(first)!r}): "
        "shorten them, leave them out, or name another"
    )


def ask_first(models: ModelCalls, mutators: Sequence[Mutator], queries: Sequence[str]) -> None:
    """Ask each role its first question, and print a line for each thing that is wrong.

    Raises:
        UserError: a model is not there, or the server wants another key.
        RunStoppedError: no server was there for too long.
    """
    question = Ask(original=queries[0], query=queries[0])
    (reply,) = models.ask([question])
    check_reply("target", reply)
    longest = max(queries, key=lambda query: len(query.encode()))
    check_context(models.dispatcher, models.call(question), reply, longest)
    judge = getattr(models.scorer, "intent_judge", None)  # which is asked of rewordings alone
    by_model = [each for each in mutators if each.kind == "model"][:1]
    reworded = ""
    for mutator in by_model or (mutators if judge else ()):
        rewrite = Rewrite(mutator=mutator, query=queries[0], seed=models.seed)
        (rewording,) = models.reword([rewrite])
        if by_model:
            check_reply("mutator", rewording)
        if rewording.text and rewording.text != queries[0]:
            reworded = rewording.text
            break
    error = None if reply.error else models.score([question], [reply], [1.0])[0].error
    if judge and reworded and not error:
        try:
            judge(queries[0], reworded)
        except OllamaError as failed:
            error = unscored(failed).error
    if error and error.startswith(ModelMissingError.__name__):
        raise UserError(error)
    if error:
        write_stderr(f"the first verdict failed: {error}")
