"""`mutagym eval --engine ray`: the agents' episodes are dealt out, and played by Ray tasks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from evaluation.policies import PolicySource
from evaluation.run import EpisodeKey, EvalInputs, OpenEvaluation, Played, Tick, open_evaluation
from ollama_utils.connect import connect, keep_replies
from ollama_utils.on_ray import run_on_ray, task_log
from ollama_utils.parallel import iterate_parallel
from ollama_utils.reply_log import ReplyLog
from records.interrupt import Interrupted, interruptible

EPISODES = 16
"""Agents' episodes of a task at least."""
MOST_TASKS = 256
"""Tasks of an evaluation at most: each connects, and opens its encoder."""


def play_on_ray(
    evaluation: OpenEvaluation, folder: Path, tick: Tick
) -> Generator[Played, None, None]:
    """Play all agents' episodes as Ray tasks; this process has joined a cluster.

    The same episodes are always of the same task, whatever the cluster: a task that is done again
    finds its replies in the run folder, which has to be on storage that all machines share.

    Raises:
        RunStoppedError: a task's worker died again and again.
        Exception: what a task raised.
    """
    inputs, connection = evaluation.inputs, evaluation.connection
    fitted = [
        {spec.name: mission.policies[spec.name] for spec in inputs.fitted}
        for mission in evaluation.missions
    ]
    server = connection.for_jobs(inputs.config.server)
    inputs = replace(inputs, config=replace(inputs.config, server=server))
    job = partial(play_chunk, inputs=inputs, fitted=fitted, folder=folder.absolute())
    # Neighbours, which ask much the same, are of one task, and no team is parted.
    keys, agents = evaluation.keys(), inputs.config.agents
    size = agents * max(-(-EPISODES // agents), -(-len(keys) // (agents * MOST_TASKS)))
    chunks = list(enumerate(keys[start : start + size] for start in range(0, len(keys), size)))
    done = 0
    hosts = connection.dispatcher.hosts
    with closing(run_on_ray(job, chunks, hosts, lambda: tick(done))) as results:
        for played in results:
            done += len(played)
            yield from played
    tick(done)


def play_chunk(
    hosts: tuple[str, ...],
    chunk: tuple[int, Sequence[EpisodeKey]],
    *,
    inputs: EvalInputs,
    fitted: Sequence[Mapping[str, PolicySource]],
    folder: Path,
) -> list[Played]:
    """A job: play some agents' episodes, on a connection of its own to the hosts dealt to it.

    `fitted` has for each mission the policies that the driver fitted, by name.

    Raises:
        UserError: a part or a policy cannot be made on this machine.
        OllamaError: one that ends the run, such as an OutageError.
    """
    config, (number, keys) = inputs.config, chunk
    with interruptible(), connect(config.server, at=hosts) as connection, ExitStack() as stack:
        evaluation = stack.enter_context(open_evaluation(inputs, connection))
        for mission, policies in zip(evaluation.missions, fitted, strict=True):
            mission.policies.update(policies)
        digests = evaluation.digests()
        replies = stack.enter_context(ReplyLog(task_log(folder, number), digests=digests))
        keep_replies(replies, config.cache, connection, digests, stack)
        try:
            with closing(iterate_parallel(evaluation.play, keys, config.jobs)) as played:
                return list(played)
        except (Interrupted, Exception):
            connection.dispatcher.cancel()
            raise
