"""Play a training run again from its own log of replies, with no server, and compare bit for bit.

mutagym replay runs/train-20260105-101500-0
mutagym replay runs/train-20260105-101500-0 --run-dir again --json replay.json
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cli.output import write_json
from records.errors import RunStoppedError
from records.interrupt import interruptible
from records.outputs import check_apart, check_writable
from records.run_folder import check_new_or_empty, read_lock
from records.settings import JsonPlace
from records.terminal import printable, prints_on_stderr
from train.config import TrainConfig

if TYPE_CHECKING:
    from train.replay import Replay


@Parameter(name="*", show=False)
@dataclass(frozen=True, kw_only=True)
class ReplayConfig(TrainConfig):
    """The settings of the run that is replayed, from its config.toml, and where the replay goes."""

    run_dir: Annotated[Path | None, Parameter(show=True)] = None
    """Keep the replay in this folder, new or empty: a run folder like any other [it is not
    kept]."""
    json: Annotated[JsonPlace, Parameter(show=True)] = None
    """Write what was compared here."""


def replay(run: Path, /, *, config: ReplayConfig = ReplayConfig()) -> None:
    """Play a training run again from its own log, with no server, and compare bit for bit.

    The hashes of the run and of the replay are shown side by side; exit code 1 says that they
    differ, or that the log lacks a reply, and where. The run is not written to. One that was
    stopped is played up to there.

    Args:
        run: The folder of a run of `mutagym train`. Code and files that it names have to be named
            again, by the flags of `mutagym train`, or --trust-run uses them; its queries it has
            itself.
        config: Of the run.
    """
    from train.replay import replay as play_again  # torch takes long to import

    check_writable(config.json, apart_from=run)
    if config.run_dir:
        check_new_or_empty(config.run_dir)
        check_apart(config.run_dir, run, "--run-dir")
    with read_lock(run), prints_on_stderr(), interruptible(), ExitStack() as stack:
        made = config.run_dir or stack.enter_context(TemporaryDirectory(prefix="mutagym-replay-"))
        replays = play_again(config, run, Path(made))
    different = next((each for each in replays if each.difference), None)
    found = {
        "run": str(run),
        "equal": different is None,
        "replays": [{"equal": not each.difference} | asdict(each) for each in replays],
    }
    if not write_json(found, config.json):
        where = f"; the replay is in {str(config.run_dir)!r}" if config.run_dir else ""
        last = [] if different else [f"equal, bit for bit{where}"]
        print(printable("\n".join([*map(_shown, replays), *last])))
    if different:
        raise RunStoppedError(
            f"{different.run!r} is not what its log of replies gives: {different.difference}"
        )


def _shown(found: Replay) -> str:
    """What was compared, for people."""
    unscored = f", {found.unscored} of them unscored, taken from the record"
    lines = [f"{found.run}: {found.steps} steps{unscored if found.unscored else ''}"]
    for each in found.compared:
        is_equal = each["replayed"] == each["recorded"]
        beside = "equal" if is_equal else f"the replay has {each['replayed']}"
        lines.append(f"  {each['what']} {each['recorded']}: {beside}")
    return "\n".join(lines)
