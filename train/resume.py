"""Going on with a training run: its queries and parts must be as they were, and its state is put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envs.mission import encoder_fingerprint
from ollama_utils.errors import EncodingError, OllamaError
from records.errors import UserError, one_line
from records.reading import MOST_QUERIES_BYTES
from records.resume import file_fingerprints
from records.terminal import tell

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv
    from envs.mission import QuerySet
    from records.run_folder import RecordedRun, RunFolder
    from train.config import TrainConfig
    from train.learner import Learner
    from train.recorder import Recorder

MAY_CHANGE = ("num-env-steps", "max-workers", "max-unscored")
"""The options that a resumed training may change, beside those of hosts and limits."""


def check_total(config: TrainConfig, saved: Mapping[str, Any], folder: RunFolder) -> None:
    """Check that the run is not to end before where it is.

    Raises:
        UserError: it is.
    """
    done = saved["learner"]["counters"]["num_timesteps"] + len(folder.transitions.ahead)
    if config.total_steps < done:
        raise UserError(f"--num-env-steps is {config.num_env_steps}, but {done} steps are done: raise it")


def check_queries(queries: QuerySet, folder: RecordedRun) -> None:
    """Check that the query file still gives the queries that the run began with.

    Raises:
        UserError: it does not.
    """
    before = folder.read_json("queries.json", MOST_QUERIES_BYTES)
    for side in ("train_sha256", "held_out_sha256", "kept_sha256"):
        if before.get(side) != queries.record().get(side):
            raise UserError(
                f"the queries are not those that the run in {str(folder.path)!r} began with: "
                "restore the original query file, or begin a new run"
            )


def fingerprints(
    config: TrainConfig, env: BatchedQueryMutationEnv, digests: Mapping[str, str]
) -> dict[str, str]:
    """What identifies the parts that a config only names: models, the encoder, files of mutators."""
    mission = config.mission
    files = {name.rpartition(":")[0] for name in mission.mutators if ":" in name}
    return (
        {f"model {name}": digest for name, digest in digests.items()}
        | file_fingerprints("mutators", files)
        | file_fingerprints("rubric", filter(None, [mission.judge_rubric]))
        | encoder_fingerprint(mission.encoder, env.envs[0].answerer.encoder)
    )


def go_on(saved: Mapping[str, Any], learner: Learner, recorder: Recorder) -> None:
    """Put the state back, and have the rows behind it played again without a call.

    Raises:
        OllamaError: a query of a lane could not be embedded.
        UserError: the state is not one of this run.
    """
    try:
        learner.restore(saved["learner"])
        recorder.restore(saved["recorder"])
    except (OllamaError, EncodingError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{str(learner.folder.checkpoint)!r} is not of this run, or damaged ({one_line(error):.200}): "
            "the run cannot go on; begin a new one"
        ) from error
    ahead = list(learner.folder.transitions.ahead)
    lanes = learner.config.num_processes
    learner.env.replay(ahead[start : start + lanes] for start in range(0, len(ahead), lanes))
    done = learner.model.num_timesteps + len(ahead)
    tell(f"resumed at step {done} of {learner.config.total_steps}")
