"""`mutagym train --seeds N --engine ray`: the run of each seed is a Ray task, in its own folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from envs.query_sets import QuerySet
from ollama_utils.connect import Connection, connect
from ollama_utils.on_ray import join_ray, run_on_ray
from records.interrupt import Interrupted, interruptible
from records.progress import ProgressDisplay
from records.run_folder import SUMMARY, RecordedRun, ResumableError, RunFolder, seed_folder
from scorers.correction import LabelAccuracy
from train.config import TrainConfig
from train.run import Outcome, begin, seed_config, summary_of_seeds, train_one


def train_seeds_on_ray(
    config: TrainConfig,
    queries: QuerySet,
    connection: Connection,
    accuracy: LabelAccuracy | None,
    stack: ExitStack,
) -> tuple[RunFolder, Outcome]:
    """Train several seeds, a Ray task each, or go on with them; each comes out as it does alone.

    The folder has to be on storage that all machines of the cluster share. What ends one seed
    before its time ends all.

    Raises:
        UserError: there is no cluster, a part cannot be made, or a folder cannot be used.
        RunStoppedError: what stopped the seeds before one of them could be summed up.
        Interrupted: likewise.
    """
    places = {"resume": config.resume, "run_dir": config.run_dir}
    folder = stack.enter_context(RunFolder.of("train", **places, seed="seeds"))
    stack.enter_context(join_ray(config.engine.ray_address))
    connection.digests(config.mission.encoder)  # the same at all hosts, before they are dealt out
    seeds = config.seeds_trained
    for seed in seeds:
        seed_config(config, folder.path, seed)  # those that go on are checked
    begin(config, folder, queries, connection)
    job = partial(
        train_seed,
        config=replace(config, server=connection.for_jobs(config.server)),
        folder=folder.path.absolute(),
        queries=queries,
        accuracy=accuracy,
    )
    gain, stopped = "", None
    with ProgressDisplay() as display:
        display.begin("seeds trained", len(seeds))
        try:
            with closing(run_on_ray(job, seeds, connection.dispatcher.hosts)) as gains:
                for done, (seed, found) in enumerate(zip(seeds, gains, strict=True), start=1):
                    gain += f"seed {seed}: {found}" if found else ""
                    display.update(done)
        except ResumableError:
            raise
        except (Interrupted, Exception) as error:  # noqa: BLE001 - what was done is kept
            stopped = folder.reported(error)
    outcomes = _outcomes(folder, seeds)
    if stopped and not outcomes:
        raise stopped
    summary = summary_of_seeds(config, connection, outcomes, stopped)
    folder.write_json(SUMMARY, summary)
    return folder, Outcome(summary=summary, stopped=stopped, gain=gain)


def train_seed(
    hosts: tuple[str, ...],
    seed: int,
    *,
    config: TrainConfig,
    folder: Path,
    queries: QuerySet,
    accuracy: LabelAccuracy | None,
) -> str:
    """A job: train one seed, or go on with it; returns what was found of its gain, for people.

    Args:
        hosts: those that are dealt to it.
        seed: its seed.
        config: of all seeds, the servers as the driver found them.
        folder: of all seeds.
        queries: those of all seeds.
        accuracy: how often the labels are right, where that is known.

    Raises:
        UserError: a part cannot be made, or the folder cannot be used.
        RunStoppedError: the run stopped itself, saved.
        Interrupted: it was cancelled, and is saved.
    """
    alone = seed_config(config, folder, seed)
    with interruptible(), connect(config.server, at=hosts) as connection, ExitStack() as stack:
        _, outcome = train_one(alone, queries, connection, accuracy, stack)
    if outcome.stopped:
        raise outcome.stopped
    return outcome.gain


def _outcomes(folder: RunFolder, seeds: Sequence[int]) -> list[Outcome]:
    """Those of the seeds that could be summed up; a summary is in the folder of its seed."""
    runs = [RecordedRun(seed_folder(folder.path, seed)) for seed in seeds]
    return [Outcome(summary=found, stopped=None) for run in runs if (found := run.summary())]
