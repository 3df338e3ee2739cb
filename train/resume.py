"""Going on with a run: what must be as it was, and putting everything back."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.errors import UserError
from train.settings import resolved

if TYPE_CHECKING:
    from train.config import TrainConfig
    from train.learner import Learner
    from train.query_set import QuerySet
    from train.recorder import Recorder
    from train.run_folder import RunFolder

MAY_CHANGE = (
    *("ollama-host", "slots", "profile", "time-scale", "max-loaded-models", "memory-gb", "faults"),
    *("num-env-steps", "max-workers", "max-in-flight", "call-timeout-s", "call-attempts", "max-unscored"),
)
"""The options of hosts and limits: all that a resumed run may be told anew."""


def check_options(config: TrainConfig, path: Path) -> None:
    """Check that the config is the one that the run in `path` began with, but for hosts and limits.

    Raises:
        UserError: it is not; the message names the option.
    """
    if config.run_dir and config.run_dir.resolve() != path.resolve():
        raise UserError(f"--run-dir {config.run_dir} and --resume {path}: a resumed run stays in its folder")
    before = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    now = {name: _plain(value) for name, value in resolved(config).items() if value is not None}
    for name in sorted({*before, *now} - set(MAY_CHANGE)):
        if before.get(name) != now.get(name):
            raise UserError(
                f"--{name} is {now.get(name)!r}, the run in {str(path)!r} began with {before.get(name)!r}: "
                f"a resumed run may change {', '.join(MAY_CHANGE)} alone; leave it out, or begin a new run"
            )


def check_total(config: TrainConfig, saved: Mapping[str, Any]) -> None:
    """Check that the run is not to end before where it is.

    Raises:
        UserError: it is.
    """
    done = saved["learner"]["counters"]["num_timesteps"]
    if config.total_steps < done:
        raise UserError(f"--num-env-steps is {config.num_env_steps}, but {done} steps are done: raise it")


def check_queries(queries: QuerySet, folder: RunFolder) -> None:
    """Check that the query file still gives the queries that the run began with.

    Raises:
        UserError: it does not.
    """
    before = folder.read_json("queries.json")
    for side in ("train_sha256", "held_out_sha256"):
        if before[side] != queries.record()[side]:
            raise UserError(
                f"the queries are not those that the run in {str(folder.path)!r} began with: "
                "put the file of then in its place, or begin a new run"
            )


def check_models(digests: Mapping[str, str], folder: RunFolder) -> None:
    """Check that the models are those that the run began with.

    Raises:
        UserError: one is not.
    """
    before = folder.read_json("models.json")
    for model, digest in before.items():
        if digests.get(model) != digest:
            raise UserError(
                f"model {model!r} has digest {digests.get(model)!r}, that of the run in {str(folder.path)!r} "
                f"is {digest!r}: bring that version back, or begin a new run"
            )


def go_on(saved: Mapping[str, Any], learner: Learner, recorder: Recorder) -> None:
    """Put the state back, and have the rows behind it played again without a call.

    Raises:
        OllamaError: a query of a lane could not be embedded.
    """
    learner.restore(saved["learner"])
    recorder.restore(saved["recorder"])
    ahead = list(learner.folder.transitions.ahead)
    lanes = learner.config.num_processes
    learner.env.replay(ahead[start : start + lanes] for start in range(0, len(ahead), lanes))
    done = learner.model.num_timesteps + len(ahead)
    print(f"resumed at step {done} of {learner.config.total_steps}", file=sys.stderr)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a TOML value
    return list(value) if isinstance(value, tuple) else value
