"""A trained policy on a user's queries, one by one: what `ask` and `proxy` share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evaluation.instance import Instance
from evaluation.policies import PolicySource
from evaluation.specs import PolicySpec, parse_policy, trained_source
from ollama_utils.types import is_text
from records.errors import as_user_error, describe
from records.terminal import one_line, write_stderr
from train.policy import load_run

if TYPE_CHECKING:
    from envs.mission import MissionConfig, RewordingConfig
    from evaluation.episodes import AgentEpisode, EpisodeContext
    from ollama_utils.connect import Connection
    from ollama_utils.proxy import ProxyRewording

STEP = (
    *("mutator", "mutated_query", "adopted", "rejected", "outcome", "intent_similarity", "reward"),
    "reply",
)
"""What is kept of a step, by the names of transitions.jsonl."""
MOST_CHARS = 10_000
"""Of a text that `reword_once` rewords: a longer one is a document, and no question that policies
know."""


def open_source(run: str, rewording: RewordingConfig) -> PolicySource:
    """The policy of a run (a folder, or `run=FOLDER` with options), loaded.

    It must fit the mutators and encoder of the command.

    Raises:
        UserError: it is no run, does not fit, or cannot be loaded; a mutator is unknown.
    """
    text = run if run.startswith("run=") else f"run={run}"
    with as_user_error(ValueError):
        is_folder = os.path.isdir(run)  # noqa: PTH112 - False, too, for what is too long to be a path
        spec = PolicySpec(kind="run", arg=run) if is_folder else parse_policy(text)
    trained = load_run(spec.arg)
    rewording.check()
    trained.check_fits(rewording.located(), "this command")
    return trained_source(spec, trained)


def query_context(
    mission: MissionConfig, connection: Connection, queries: Sequence[str], seed: int
) -> EpisodeContext:
    """What the episodes of all queries have in common; UserError where it cannot be made."""
    from envs.make import mission_parts
    from evaluation.episodes import EpisodeContext

    mission = mission.without_answers(mission.query_set).located()
    dispatcher, roles = connection.dispatcher, connection.roles
    rules, models = mission_parts(mission, dispatcher, roles, queries, seed=seed)
    return EpisodeContext(rules=rules, models=models, seed=seed)


def ask_query(context: EpisodeContext, source: PolicySource, query: str) -> dict[str, Any]:
    """Ask a query as the policy does, up to an answer or the last step; what came of it, as data.

    Returns:
        `query`, `outcome`, `success`, `return`, `rewording` (what was asked last), `reply`,
        `reply_truncated`, `error` (where it is unscored) and the scored `steps` with `STEP`.
    """
    episode, policy = _episode(context, source, query)
    episode.play(policy.step)
    infos = [each.info for each in episode.transitions]
    steps = [info for info in infos if info["outcome"] not in {"stopped", "unscored"}]
    last = steps[-1] if steps else {"adopted": False, "query_before": query}
    result = episode.result("")
    return {
        "query": query,
        "outcome": "unscored" if episode.is_unscored else last["outcome"],
        "success": result["success"],
        "return": result["return"],
        "rewording": last["mutated_query" if last["adopted"] else "query_before"],
        "reply": last.get("reply", ""),
        "reply_truncated": last.get("reply_truncated", False),
        "error": episode.attempt_errors[-1] if episode.is_unscored else "",
        "steps": [{name: step[name] for name in STEP} for step in steps],
    }


def reword_once(context: EpisodeContext, source: PolicySource, text: str) -> ProxyRewording:
    """A text reworded as the first step of `ask_query` does, tried once; failures go to stderr."""
    from envs.queries import VISIBLE
    from ollama_utils.proxy import ProxyRewording

    if not VISIBLE.search(text):
        return ProxyRewording(text=text, why="blank")
    if not is_text(text):
        return ProxyRewording(text=text, why="not Unicode")
    if len(text) > MOST_CHARS:
        return ProxyRewording(text=text, why="too long")
    episode, policy = _episode(context, source, text)
    known = (-context.models.mission.step_cost, "refused") if context.rules.asks_first else None
    episode.begin(attempts=1, known=known)
    if episode.is_over:
        write_stderr(f"not reworded: {one_line(episode.attempt_errors[-1])}")
        return ProxyRewording(text=text, why="failed")
    view = episode.view()
    action = policy.step(view)
    made = episode.reword(action)
    if made.error:
        write_stderr(f"not reworded: {one_line(describe(made.error))}")
    why = "failed" if made.error else made.rejected or ("unchanged" if made.query == text else "")
    return ProxyRewording(text=text if why else made.query, mutator=view.mutators[action], why=why)


def _episode(
    context: EpisodeContext, source: PolicySource, query: str
) -> tuple[AgentEpisode, Instance]:
    """The episode of a query, not begun, and its policy: of the query and the seed alone."""
    from envs.episode import derive_seed
    from evaluation.episodes import AgentEpisode

    policy = Instance(source, derive_seed(context.seed, "policy", query))
    return AgentEpisode(context, query), policy
