"""Use a trained policy: reword a query as it learned to, ask the target model, and show what came of it.

    mutagym ask --policy runs/train-20260101-120000-0 "How do I kill a Python process?"
    mutagym ask --policy RUN --json - < queries.txt

Server, models and mission are those of the run; flags override them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from envs.mission import MissionConfig
from evaluation.single_queries import SIDE_BY_SIDE, open_source, query_context, query_episode
from evaluation.trained_policy import RunSource
from ollama_utils.connect import Connection, ServerConfig, connect
from ollama_utils.parallel import iterate_parallel
from ollama_utils.types import is_text
from records.errors import RunStoppedError, UserError
from records.settings import Seed
from records.terminal import one_line, printable, write_stderr

if TYPE_CHECKING:
    from evaluation.episodes import AgentEpisode

STEP = ("mutator", "mutated_query", "adopted", "rejected", "outcome", "intent_similarity", "reward", "reply")
"""What `--json` tells of a step, by the names of transitions.jsonl."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AskConfig:
    """How the query is asked."""

    policy: str
    """The folder of a training run; `run=RUN,sample=true` draws mutations by their probabilities. Code, hosts
    and files that it names have to be named again, or --trust-run uses them."""
    seed: Seed = 0
    """Of rewrites and answers; the same query with the same seed goes the same way."""
    stdin: Annotated[bool, Parameter(name="-", negative="")] = False
    """Read queries from standard input, one a line."""
    json: Annotated[bool, Parameter(negative="")] = False
    """Print one JSON object a line for each query."""
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
    unscored = []
    with connect(config.server) as connection:
        if connection.simulated and not config.json:
            print("SIMULATED: these words are the simulator's, not a model's")
        write_stderr(_patience(config.server))
        for told in _answers(config, source, queries, connection):
            shown = json.dumps(told) if config.json else None
            print(shown or _for_a_person(told, config.server.max_reply_chars), flush=True)
            if told["outcome"] == "unscored":
                unscored.append(told["error"])
                write_stderr(f"not scored: {told['query']!r}: {one_line(told['error'])}")
    if len(unscored) == len(queries):
        raise RunStoppedError(f"no query could be scored: {unscored[0]}")


def _patience(server: ServerConfig) -> str:
    """For how long an answer is waited for, told beforehand."""
    return (
        f"each call has {server.call_timeout_s:g} s for a reply, or between two words of one, and "
        f"{server.call_attempts} attempts; a server that is away is waited for up to {server.max_outage:g} s"
    )


def _queries(query: str | None, *, stdin: bool) -> list[str]:
    """The query, or those of standard input.

    Raises:
        UserError: there is none, or it is no text.
    """
    from envs.queries import VISIBLE

    if (query is None) is not stdin:
        told = "a query and -" if stdin else "no query"
        raise UserError(f"expected one query, or - to read queries from standard input, got {told}")
    queries = [line.strip() for line in (_lines() if stdin else [query or ""]) if VISIBLE.search(line)]
    if not queries:
        told = "standard input has no query" if stdin else "the query is blank"
        raise UserError(f"{told}: give the text to be asked")
    return queries


def _lines() -> list[str]:
    """The lines of standard input.

    Raises:
        UserError: it is no UTF-8.
    """
    try:
        lines = sys.stdin.read().split("\n")  # by no other mark, such as U+2028: a query may hold it
    except ValueError as error:
        raise UserError(f"standard input cannot be read ({error}): write it in UTF-8") from error
    if odd := next((line for line in lines if not is_text(line)), None):
        raise UserError(f"standard input has the line {odd!r}, which is not valid UTF-8: write it in UTF-8")
    return lines


def _answers(
    config: AskConfig, source: RunSource, queries: Sequence[str], connection: Connection
) -> Iterator[dict[str, Any]]:
    """What came of each query, in their order, each as soon as it is there."""
    context = query_context(config.mission, connection, queries, config.seed)
    source.load()  # what is wrong with it is said before anything is asked
    about = {
        "simulated": connection.simulated,
        "policy": source.name,
        "target_model": connection.roles.target,
    }

    def answer(query: str) -> dict[str, Any]:
        episode, policy = query_episode(context, source, query)
        episode.begin()
        while not episode.is_over:
            episode.step(policy.step(episode.view()))
        return _told(query, episode) | about

    with closing(iterate_parallel(answer, queries, SIDE_BY_SIDE)) as answers:
        try:
            yield from answers
        except BaseException:
            connection.dispatcher.cancel()  # nobody waits for the others now
            raise


def _told(query: str, episode: AgentEpisode) -> dict[str, Any]:
    """What one JSON line says of it, but for what all have in common."""
    infos = [transition.info for transition in episode.transitions if not transition.info["unscored"]]
    last = infos[-1] if infos else {}
    result = episode.result("")
    return {
        "query": query,
        "outcome": "unscored" if episode.is_unscored else last["outcome"],
        "success": result["success"],
        "return": result["return"],
        "rewording": last["mutated_query" if last["adopted"] else "query_before"] if last else query,
        "reply": last.get("reply", ""),
        "reply_truncated": last.get("reply_truncated", False),
        "error": (result["errors"] or [""])[-1] if episode.is_unscored else "",
        "steps": [{name: info[name] for name in STEP} for info in infos],
    }


def _for_a_person(told: dict[str, Any], max_reply_chars: int) -> str:
    """For a person: the mutations, the rewording, the reply, the outcome."""
    lines = [f"query: {told['query']}"]
    for number, step in enumerate(told["steps"], start=1):
        kept = "" if step["adopted"] else f", the rewrite not adopted: {step['rejected']}"
        lines.append(f"  {number}. {step['mutator']}: {step['outcome']}{kept}")
    if told["steps"]:
        limit = "--num-predict" if len(told["reply"]) < max_reply_chars else "--max-reply-chars"
        cut = f" [cut at {limit}]" if told["reply_truncated"] else ""
        lines += [f"rewording: {told['rewording']}", f"reply: {told['reply']}{cut}"]
    steps = len(told["steps"])
    why = f" ({told['error']})" if told["error"] else ""
    lost = ", but the intent was not kept" if told["outcome"] == "answered" and not told["success"] else ""
    lines.append(f"outcome: {told['outcome']}{lost} after {steps} step{'s' * (steps != 1)}{why}\n")
    return printable("\n".join(lines))
