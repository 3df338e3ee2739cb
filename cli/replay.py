"""Play a training run again from its own log of replies, with no server, and compare the two bit for bit.

mutagym replay runs/train-20260105-101500-0
mutagym replay runs/train-20260105-101500-0 --run-dir again --json replay.json
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cli.formats import prints_on_stderr, write_json
from envs.query_sets import recorded_queries
from records.errors import RunStoppedError, UserError
from records.interrupt import interruptible
from records.outputs import check_writable
from records.run_folder import (
    QUERIES,
    RecordedRun,
    check_is_run,
    check_new_or_empty,
    read_lock,
    seed_folder,
)
from records.settings import JsonPlace
from records.terminal import printable
from train.config import TrainConfig

if TYPE_CHECKING:
    from train.replay import Replay


@Parameter(name="*", show=False)
@dataclass(frozen=True, kw_only=True)
class ReplayConfig(TrainConfig):
    """The settings of the run that is replayed, from its config.toml, and where the replay goes."""

    run_dir: Annotated[Path | None, Parameter(show=True)] = None
    """Keep the replay in this folder, new or empty: a run folder like any other [it is not kept]."""
    json: Annotated[JsonPlace, Parameter(show=True)] = None
    """Write what was compared here."""


def replay(run: Path, /, *, config: ReplayConfig = ReplayConfig()) -> None:
    """Play a training run again from its own log of replies, with no server, and compare bit for bit.

    The hashes of the run and of the replay are shown side by side; exit code 1 says that they differ, or that
    the log lacks a reply, and where. The run is not written to. One that was stopped is played up to there.

    Args:
        run: The folder of a run of `mutagym train`. Code and files that it names have to be named again, by
            the flags of `mutagym train`, or --trust-run uses them; its queries it has itself.
        config: Of the run.
    """
    from train.replay import read_recorded  # torch takes long to import: not before all is checked
    from train.replay import replay as play_again

    _check_places(run, config)
    replays = []
    with (
        read_lock(run),
        prints_on_stderr(),
        interruptible(),
        _folder(config.run_dir) as folder,
    ):
        config.mission.check()
        queries = recorded_queries(run / QUERIES)
        for seed in config.seeds_trained:
            of_several = config.seeds is not None
            path = seed_folder(run, seed) if of_several else run
            own = replace(config, seed=seed, seeds=None)
            recorded = read_recorded(RecordedRun(path), config.num_processes)
            place = seed_folder(folder, seed) if of_several else folder
            replays.append(play_again(own, recorded, place, queries))
    is_told = write_json(_as_data(run, replays), config.json)
    if not is_told:
        print(printable("\n".join(map(_told, replays))))
    if different := [each for each in replays if each.difference]:
        raise RunStoppedError(
            f"{different[0].run!r} is not what its log of replies gives: {different[0].difference}"
        )
    if not is_told:
        where = f"; the replay is in {str(config.run_dir)!r}" if config.run_dir else ""
        print(printable(f"equal, bit for bit{where}"))


def _check_places(run: Path, config: ReplayConfig) -> None:
    """Check the folders and files, before anything is made."""
    check_is_run(run, "RUN")
    check_writable(config.json, apart_from=run)
    if config.run_dir:
        check_new_or_empty(config.run_dir)
        if config.run_dir.resolve().is_relative_to(run.resolve()):
            where = f"--run-dir names {str(config.run_dir)!r}, in the folder of the run"
            raise UserError(f"{where}: name another place")


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    """The folder that is named, or one that is gone at the end."""
    if named:
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="mutagym-replay-") as made:
        yield Path(made)


def _told(found: Replay) -> str:
    """What was compared, for people."""
    taken = f", {found.unscored} of them unscored, taken from the record" if found.unscored else ""
    lines = [f"{found.run}: {found.steps} steps{taken}"]
    for each in found.compared:
        is_equal = each["replayed"] == each["recorded"]
        beside = "equal" if is_equal else f"the replay has {each['replayed']}"
        lines.append(f"  {each['what']} {each['recorded']}: {beside}")
    return "\n".join(lines)


def _as_data(run: Path, replays: list[Replay]) -> dict[str, Any]:
    return {
        "run": str(run),
        "equal": not any(each.difference for each in replays),
        "replays": [{"equal": not each.difference} | asdict(each) for each in replays],
    }
