"""Going on with a run: what must be as it was, and putting everything back."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.errors import UserError
from records.settings import resolved

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv
    from records.run_folder import RunFolder
    from train.config import TrainConfig
    from train.learner import Learner
    from train.mission import QuerySet
    from train.recorder import Recorder

MAY_CHANGE = (
    *("ollama-host", "slots", "profile", "time-scale", "max-loaded-models", "memory-gb", "faults"),
    *("num-env-steps", "max-workers", "max-in-flight", "call-timeout-s", "call-attempts", "max-unscored"),
)
"""The options of hosts and limits: all that a resumed run may be told anew."""
RENAMED = {"hopeless": "early-stop-level"}
"""Options that older run folders know by another name."""
_SHOWN_CHARS = 40
SAMPLE = "The same text has the same embedding."
"""What an encoder is known by is how it embeds this."""


def check_options(
    config: Any,  # noqa: ANN401 - any config dataclass
    path: Path,
    may_change: Sequence[str] = MAY_CHANGE,
    *,
    run_dir: Path | None,
) -> None:
    """Check that the config is the one that the run in `path` began with, but for some options.

    Args:
        config: the config.
        path: the folder of the run.
        may_change: the options that may be told anew; by default those of hosts and limits.
        run_dir: the folder that the config names for a new run, if it does.

    Raises:
        UserError: it is not; the message names the option.
    """
    if run_dir and run_dir.resolve() != path.resolve():
        raise UserError(f"--run-dir {run_dir} and --resume {path}: a resumed run stays in its folder")
    recorded = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    before = {RENAMED.get(name, name): value for name, value in recorded.items()}
    now = {name: _plain(value) for name, value in resolved(config).items() if value is not None}
    for name in sorted({*before, *now} - set(may_change)):
        if before.get(name) != now.get(name):
            raise UserError(
                f"--{name} is {_shown(now.get(name))}, but the run began with {_shown(before.get(name))}: "
                "leave it out, or begin a new run (--help says what --resume may change)"
            )


def check_total(config: TrainConfig, saved: Mapping[str, Any], folder: RunFolder) -> None:
    """Check that the run is not to end before where it is.

    Raises:
        UserError: it is.
    """
    done = saved["learner"]["counters"]["num_timesteps"] + len(folder.transitions.ahead)
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


def fingerprints(
    config: TrainConfig, env: BatchedQueryMutationEnv, digests: Mapping[str, str]
) -> dict[str, str]:
    """What stands for the parts that a config only names: models, the encoder, files of mutators."""
    files = {name.rpartition(":")[0] for name in config.mission.mutators if ":" in name}
    parts = {f"model {name}": digest for name, digest in digests.items()}
    parts |= {f"mutators {name}": sha256(Path(name).read_bytes()).hexdigest() for name in sorted(files)}
    if config.mission.judge_rubric:
        rubric = config.mission.judge_rubric
        parts[f"rubric {rubric}"] = sha256(Path(rubric).read_bytes()).hexdigest()
    if not config.mission.encoder.startswith("ollama:"):  # the others are models that have a digest
        row = env.envs[0].answerer.encoder.encode([SAMPLE])
        parts[f"encoder {config.mission.encoder}"] = sha256(row.tobytes()).hexdigest()
    return parts


def check_parts(parts: Mapping[str, str], folder: RunFolder) -> None:
    """Check that the parts of the run are those that it began with.

    Raises:
        UserError: one is not.
    """
    before = folder.read_json("parts.json")
    for name in sorted({*before, *parts}):
        if before.get(name) != parts.get(name):
            raise UserError(
                f"{name!r} is not what the run in {str(folder.path)!r} began with: bring that back, or begin "
                "a new run"
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


def _shown(value: Any) -> str:  # noqa: ANN401 - a TOML value
    """The value, cut short: the message is to stay one that is read."""
    text = "not set" if value is None else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a TOML value
    return list(value) if isinstance(value, tuple) else value
