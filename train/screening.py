"""The screen: before the first rollout, every training query is asked once as it stands.

Most queries need no rewording. Episodes begin with the others, and the first observation has what
the reply was: as a policy is used later, where a query is asked first, and reworded if it gets no
answer. A query that could not be asked is not known for the whole run: its episodes begin without.

screen.jsonl has a line a query, like those of transitions.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from envs.episode import (
    LOOK,
    Episode,
    begin_together,
    derive_seed,
    label_of,
    remembered_reward,
    step_together,
)
from envs.query_mutation import QueryMutationEnv
from envs.transitions import check_transition, transition_record
from ollama_utils.parallel import iterate_parallel
from records.errors import UserError
from records.failures import FailureLimit
from records.json_lines import read_lines
from records.outputs import replacing
from records.progress import ProgressDisplay
from records.run_folder import SCREEN
from records.terminal import write_stderr
from train.record import raise_if_cancelled

if TYPE_CHECKING:
    from train.run import TrainingRun

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What the target says to the training queries as they stand."""

    lines: Sequence[Line]
    """One a query, in the order of the queries."""

    @property
    def looks(self) -> dict[str, tuple[float, str]]:
        """By query that is known to have got no answer, the reward and the label of the reply."""
        known = [line for line in self.lines if not (line["unscored"] or line["success"])]
        return {line["original_query"]: (remembered_reward(line), label_of(line)) for line in known}

    @property
    def played(self) -> list[str]:
        """The queries that episodes begin with: all that are not known to be answered."""
        return [line["original_query"] for line in self.lines if not line["success"]]

    def summary(self) -> dict[str, int]:
        """How many queries were asked, how many of them answered, and how many are not known."""
        known = [line for line in self.lines if not line["unscored"]]
        asked = [line for line in known if not line["guard"]]
        guard = [line for line in known if line["guard"]]
        counts = {
            "screened": len(asked),
            "screened_answered": sum(line["success"] for line in asked),
            "screened_unknown": len(self.lines) - len(known),
        }
        if guard:
            counts |= {
                "guard": len(guard),
                "guard_answered": sum(each["success"] for each in guard),
            }
        return counts


def screen(run: TrainingRun, display: ProgressDisplay) -> Screen:
    """Ask the training queries of a run, or read what came of it in an earlier process.

    Raises:
        UserError: the file is damaged, or every query was answered: there is nothing to learn.
        RunStoppedError: too many could not be asked.
        CallCancelledError: the run was stopped meanwhile.
    """
    path = run.folder.path / SCREEN
    if not path.exists():
        lines = _ask(run, display)
        with replacing(path) as part:
            part.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    try:
        found = Screen(lines=list(read_lines(path, check_transition)))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read ({error}): begin a new run") from error
    counts = found.summary()
    answered, known = counts["screened_answered"], counts["screened"]
    unknown = counts["screened_unknown"]
    more = f"; {unknown} could not be asked" if unknown else ""
    if "guard" in counts:
        more += f", and {counts['guard_answered']} of {counts['guard']} guard queries"
    write_stderr(f"{run.prefix}as they stand, {answered} of {known} queries are answered{more}")
    guards = run.envs[0].rules.guards
    if not any(query not in guards for query in found.played):
        raise UserError(
            f"all {known} training queries are answered as they stand, so there is nothing to "
            "learn: train on queries that the target refuses, or name another --target-model or "
            "--target-system; --always-reword trains all the same"
        )
    return found


def _ask(run: TrainingRun, display: ProgressDisplay) -> list[Line]:
    """The lines of the queries, which are asked side by side as the schedule says."""
    config, env = run.config, run.envs[0]
    workers = config.max_workers or config.num_processes
    max_workers = 1 if config.driven_by == "sequential" else workers
    limit = FailureLimit(config.max_unscored, what="queries could not be asked")
    queries = list(dict.fromkeys(query.text for query in run.queries.train))
    display.show()
    beside = ProgressDisplay(beside=display)
    beside.begin(f"{run.prefix}queries asked as they stand", len(queries))
    lines: list[Line] = []
    look = partial(_look, env, config.seed)
    with closing(iterate_parallel(look, queries, max_workers)) as looks:
        for line in looks:
            raise_if_cancelled([line["not_hashed"]["error_message"]])
            limit.add([line["not_hashed"]["error_message"]])
            lines.append({**line, "row": len(lines)})
            beside.update(len(lines))
    limit.check()
    return lines


def _look(env: QueryMutationEnv, seed: int, query: str) -> Line:
    """The line of a query."""
    episode = Episode(
        rules=env.rules, original=query, seed=derive_seed(seed, "screen", query), number=0
    )
    begin_together([episode], env.models)
    (taken,) = step_together([episode], [LOOK], env.models)
    ended = {"terminated": taken.terminated, "truncated": taken.truncated}
    return transition_record(0, 0, taken.info, **ended)
