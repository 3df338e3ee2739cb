"""Going on with a training run: its parts must be as they were, and its state is put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envs.mission import encoder_fingerprint
from envs.queries import queries_sha256
from ollama_utils.errors import EncodingError, OllamaError
from records.errors import UserError, describe
from records.resume import file_fingerprints
from records.terminal import write_stderr

if TYPE_CHECKING:
    from envs.batched import BatchedQueryMutationEnv
    from envs.mission import QuerySet
    from records.run_folder import RunFolder
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


def fingerprints(
    config: TrainConfig, queries: QuerySet, env: BatchedQueryMutationEnv, digests: Mapping[str, str]
) -> dict[str, str]:
    """What identifies what a config only names: models, the encoder, queries, files of mutators."""
    mission = config.mission
    files = {name.rpartition(":")[0] for name in mission.mutators if ":" in name}
    return (
        {f"model {name}": digest for name, digest in digests.items()}
        | file_fingerprints("mutators", files)
        | file_fingerprints("rubric", filter(None, [mission.judge_rubric]))
        | encoder_fingerprint(mission.encoder, env.envs[0].answerer.encoder)
        | {"queries": queries_sha256((*queries.train, *queries.held_out, *queries.kept))}
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
            f"{str(learner.folder.checkpoint)!r} is not of this run, or damaged ({describe(error):.200}): "
            "the run cannot go on; begin a new one"
        ) from error
    ahead = list(learner.folder.transitions.ahead)
    lanes = learner.config.num_processes
    learner.env.replay(ahead[start : start + lanes] for start in range(0, len(ahead), lanes))
    done = learner.model.num_timesteps + len(ahead)
    write_stderr(f"resumed at step {done} of {learner.config.total_steps}")
