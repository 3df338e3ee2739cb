"""Use a trained policy: reword a query as it learned to, ask the target, show what came of it.

    mutagym ask --policy runs/train-20260101-120000-0 "How do I kill a Python process?"
    mutagym ask --policy RUN --json - < queries.txt

Server, models and mission are those of the run; flags override them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from envs.mission import MissionConfig
from evaluation.single_queries import ask_query, open_source, query_context
from ollama_utils.connect import ServerConfig, connect
from ollama_utils.parallel import iterate_parallel
from ollama_utils.types import is_text
from records.errors import RunStoppedError, UserError
from records.settings import Seed
from records.terminal import counted, one_line, printable, write_stderr

SIDE_BY_SIDE = 64
"""Queries under way at once; how many calls are in flight is the dispatcher's to say."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AskConfig:
    """How the query is asked."""

    policy: str
    """The folder of a training run; `run=RUN,sample=true` draws mutations by their probabilities.
    Code, hosts and files that it names have to be named again, or --trust-run uses them."""
    seed: Seed = 0
    """Seed of rewordings and answers: the same query with the same seed is reworded alike."""
    stdin: Annotated[bool, Parameter(name="-", negative="")] = False
    """Read queries from standard input, one per line."""
    json: Annotated[bool, Parameter(negative="")] = False
    """Print one JSON object per query, each on a line."""
    mission: MissionConfig = field(default_factory=MissionConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


def ask(query: str | None = None, /, *, config: AskConfig) -> None:
    """Reword a query as a trained policy does, ask the target model, and show what came of it.

    Args:
        query: The query; in its place - reads queries from standard input.
        config: How it is asked.
    """
    source = open_source(config.policy, config.mission)
    queries = _queries(query, stdin=config.stdin)
    errors = []
    with connect(config.server) as connection:
        if connection.simulated and not config.json:
            print("SIMULATED: these words are the simulator's, not a model's")
        server = config.server
        write_stderr(
            f"each call has {server.call_timeout_s:g} s for a reply, or between two words of one, "
            f"and {server.call_attempts} attempts; a server that is away is waited for up to "
            f"{server.max_outage:g} s"
        )
        context = query_context(config.mission, connection, queries, config.seed)
        about = {
            "simulated": connection.simulated,
            "policy": source.name,
            "target_model": connection.roles.target,
        }
        play = partial(ask_query, context, source)
        with closing(iterate_parallel(play, queries, SIDE_BY_SIDE)) as found:
            try:
                for each in found:
                    shown = json.dumps(each | about) if config.json else _shown(each, server)
                    print(shown, flush=True)
                    if each["error"]:
                        errors.append(each["error"])
                        write_stderr(f"not scored: {each['query']!r}: {one_line(each['error'])}")
            except BaseException:
                connection.dispatcher.cancel()  # nobody waits for the others now
                raise
    if len(errors) == len(queries):
        raise RunStoppedError(f"no query could be scored: {errors[0]}")


def _queries(query: str | None, *, stdin: bool) -> list[str]:
    """The query, or the lines of standard input that are not blank."""
    from envs.queries import VISIBLE

    if (query is None) is not stdin:
        got = "a query and -" if stdin else "no query"
        raise UserError(f"expected one query, or - to read queries from standard input, got {got}")
    lines = [query or ""]
    if stdin:
        try:
            text = sys.stdin.read()
        except ValueError as error:
            raise UserError(f"standard input cannot be read ({error}): write it in UTF-8") from None
        if not is_text(text):
            raise UserError("standard input cannot be read: write it in UTF-8")
        lines = text.split("\n")  # by no other mark, such as U+2028: a query may hold it
    if not (queries := [line.strip() for line in lines if VISIBLE.search(line)]):
        what = "standard input has no query" if stdin else "the query is blank"
        raise UserError(f"{what}: give the text to be asked")
    return queries


def _shown(found: Mapping[str, Any], server: ServerConfig) -> str:
    """For a person: the mutations, the rewording, the reply, the outcome."""
    lines = [f"query: {found['query']}"]
    for number, step in enumerate(found["steps"], start=1):
        kept = "" if step["adopted"] else f", the rewrite not adopted: {step['rejected']}"
        lines.append(f"  {number}. {step['mutator'] or 'as it stands'}: {step['outcome']}{kept}")
    if found["steps"]:
        is_long = len(found["reply"]) >= server.max_reply_chars
        limit = "--max-reply-chars" if is_long else "--num-predict"
        cut = f" [cut at {limit}]" if found["reply_truncated"] else ""
        lines += [f"rewording: {found['rewording']}", f"reply: {found['reply']}{cut}"]
    is_other = found["outcome"] == "answered" and not found["success"]
    but = ", but the intent was not kept" if is_other else ""
    steps = counted(sum(bool(step["mutator"]) for step in found["steps"]), "step")
    why = f" ({found['error']})" if found["error"] else ""
    lines.append(f"outcome: {found['outcome']}{but} after {steps}{why}\n")
    return printable("\n".join(lines))
