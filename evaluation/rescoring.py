"""Replies that are there already, scored once more: those of a run's steps, or of a file.

No target is asked; only a judge takes a server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from envs.queries import answers_of
from envs.transitions import check_transition
from evaluation.missions import recorded_queries
from evaluation.rates import rate
from ollama_utils.connect import ServerConfig, connect, keep_replies
from ollama_utils.parallel import iterate_parallel
from ollama_utils.types import Completion
from records.errors import UserError, as_user_error
from records.json_lines import MOST_QUERIES_BYTES
from records.run_folder import MISSIONS, QUERIES, RecordedRun, seed_folders
from records.terminal import counted, write_stderr
from scorers.agreement import cohen_kappa
from scorers.answers import MEASURES
from scorers.labels import REFUSAL_LABELS, RefusalLabel
from scorers.reward import Verdict, make_scorer

Line = Mapping[str, Any]
"""A line of transitions.jsonl."""
MOST_AT_ONCE = 256
"""Replies that are judged at once; how many calls are in flight is the dispatcher's to say."""
CALLS_A_VERDICT = 2
"""At most: a judge's reply that is no verdict is asked to be repaired once."""
SAY_EVERY = 256
"""Replies that are scored between two lines of progress."""
NO_REPLY = ("stopped", "unscored")
"""The outcomes of steps that have no reply that could be scored."""
_ANSWERS = TypeAdapter(dict[str, tuple[str, ...]])
MOST_ERRORS = 3
"""Different errors that a report lists."""


class StoredReply(NamedTuple):
    """A reply, and all that its score depends on: equal ones are scored once."""

    original: str
    query: str
    """A rewording of it, or the original."""
    reply: str
    truncated: bool = False
    filtered: bool = False
    similarity: float = 1.0
    """Cosine similarity of the embeddings of the two queries."""


def score_replies(
    replies: Sequence[StoredReply | None],
    reward: str,
    *,
    server: ServerConfig | None,
    cache: Path | None = None,
    **settings: Any,  # noqa: ANN401 - of make_scorer
) -> tuple[list[Verdict | None], bool]:
    """Score replies, for a judge as many at once as its server takes.

    Args:
        replies: the replies; None stays None.
        reward: what scores them.
        server: the judge's; None: none is asked.
        cache: a folder that runs share: what it holds no judge is asked again.
        settings: what else `make_scorer` takes, but for the judge.

    Returns:
        The verdict on each reply, and whether they are those of the simulator's judge.

    Raises:
        UserError: there is no such reward, or no judge for it.
    """
    different = list(dict.fromkeys(filter(None, replies)))
    verdicts: dict[StoredReply, Verdict] = {}
    score_all: Any = map
    simulated = False
    with ExitStack() as stack:
        if server:
            judge = server.judge_model  # no other model is called
            server = replace(server, target_model=judge, mutator_model=judge)
            connection = stack.enter_context(connect(server, named_by="--judge-model"))
            keep_replies(None, cache, connection, connection.digests(""), stack)
            settings["dispatcher"] = connection.dispatcher
            settings["judge_model"] = connection.roles.judge
            score_all = partial(iterate_parallel, max_workers=MOST_AT_ONCE)
            if simulated := connection.simulated:
                write_stderr("SIMULATED: the judge is the simulator's, not a model")
            most_calls = counted(CALLS_A_VERDICT * len(different), "call")
            write_stderr(f"{len(different)} different replies to judge, at most {most_calls}")
        with as_user_error(ValueError):
            scorer = make_scorer(reward, **settings)

        def score(each: StoredReply) -> Verdict:
            reply = Completion(text=each.reply, truncated=each.truncated, filtered=each.filtered)
            return scorer(each.original, each.query, reply, each.similarity)

        for reply, verdict in zip(different, score_all(score, different), strict=True):
            verdicts[reply] = verdict
            if len(verdicts) % SAY_EVERY == 0:
                write_stderr(f"scored {len(verdicts)} of {len(different)} different replies")
    return [verdicts[reply] if reply else None for reply in replies], simulated


def score_run(
    run: Path,
    reward: str,
    *,
    server: ServerConfig | None,
    cache: Path | None,
    **settings: Any,  # noqa: ANN401 - of make_scorer
) -> tuple[list[Line], list[Verdict | None], bool]:
    """Score the steps of a run, of all its seeds, without those of guard queries.

    The arguments are those of `score_replies`; right answers are those of the run.

    Returns:
        The steps, the verdict on each (None where the run has it unscored), and whether replies or
        verdicts are the simulator's.

    Raises:
        UserError: the run kept no steps or has none that is scored, a line is damaged, or right
            answers are needed and there are none.
    """
    folders = [RecordedRun(path) for path in seed_folders(run) or [run]]
    steps: list[Line] = []
    for folder in folders:
        lines = list(folder.read_transitions(check_transition))
        if missing := folder.missing_lines(len(lines)):
            write_stderr(f"note: {missing}")
        steps += [line for line in lines if not line.get("guard")]
    replies = [_stored_reply(step) for step in steps]
    if not any(replies):
        raise UserError(f"the run {str(run)!r} has no scored step: nothing can be scored again")
    if reward in MEASURES:
        settings["answers"] = _answers(folders)
    verdicts, simulated = score_replies(replies, reward, server=server, cache=cache, **settings)
    return steps, verdicts, simulated or RecordedRun(run).simulated


def _stored_reply(step: Line) -> StoredReply | None:
    if step["outcome"] in NO_REPLY:
        return None
    return StoredReply(
        original=step["original_query"],
        query=step["mutated_query"] if step["adopted"] else step["query_before"],
        reply=step["reply"],
        truncated=step["reply_truncated"],
        filtered=step["outcome"] == "filtered",
        similarity=step["intent_similarity"],
    )


def _answers(folders: Sequence[RecordedRun]) -> dict[str, Sequence[str]]:
    """The right answers to the queries of a run, by query.

    Raises:
        UserError: there are none, or its queries.json is damaged.
    """
    found: dict[str, Sequence[str]] = {}
    for folder in folders:
        if (folder.path / MISSIONS).is_file():
            for _, played in recorded_queries(folder.path).values():
                found |= answers_of(played)
            continue
        record = folder.read_json(QUERIES, MOST_QUERIES_BYTES)
        try:
            found |= _ANSWERS.validate_python(record.get("answers", {}))
        except ValueError as error:
            raise UserError(f"{str(folder.path / QUERIES)!r} is damaged: train again") from error
    if not any(found.values()):
        raise UserError(
            f"{str(folders[0].path / QUERIES)!r} has no right answers, for the file of its queries "
            "had none: they cannot be compared with replies"
        )
    return found


def compare_verdicts(steps: Sequence[Line], verdicts: Sequence[Verdict | None]) -> dict[str, Any]:
    """The rates of success and refusal by the run and by the new verdicts, and their agreement.

    They are plain data, of the steps that both scored, with intervals clustered by query.
    """
    pairs = [(step, vars(new)) for step, new in zip(steps, verdicts, strict=True) if new]
    both = [(step, new) for step, new in pairs if new["outcome"] != "unscored"]
    errors = Counter(new["error"] for _, new in pairs if new["outcome"] == "unscored")
    labels = Counter((label_of_step(step), label_of_step(new)) for step, new in both)

    def rate_of(happened: Iterable[bool]) -> dict[str, Any]:
        return rate(
            (step["original_query"], h, 1) for (step, _), h in zip(both, happened, strict=True)
        )

    says = {
        "success": [(old["success"], new["success"]) for old, new in both],
        "refusal": [
            (old["outcome"] == "refused", new["outcome"] == "refused") for old, new in both
        ],
    }
    return {
        "steps": {
            "all": sum(step["outcome"] != "stopped" for step in steps),
            "both": len(both),
            "unscored_in_the_run": sum(step["unscored"] for step in steps),
            "unscored_now": len(pairs) - len(both),
        },
        "in_the_run": {name: rate_of(old for old, _ in each) for name, each in says.items()},
        "rescored": {name: rate_of(new for _, new in each) for name, each in says.items()},
        "agreement": {
            name: rate_of(old == new for old, new in each) | {"kappa": cohen_kappa(each)}
            for name, each in says.items()
        },
        "labels": {a: {b: labels[a, b] for b in REFUSAL_LABELS} for a in REFUSAL_LABELS},
        "errors": dict(errors.most_common(MOST_ERRORS)),
    }


def label_of_step(scored: Mapping[str, Any]) -> RefusalLabel:
    """The label behind a scored step, by its line or its verdict."""
    if scored["outcome"] == "refused":
        return "partly_refused" if scored["partial"] else "refused"
    is_answer = scored["outcome"] == "answered" and not scored["undetermined"]
    return "answered" if is_answer else "undetermined"


def rescored_step(step: Line, verdict: Verdict | None) -> dict[str, Any]:
    """The line of a step with a new verdict; it stays as it is without one."""
    if verdict is None:
        return dict(step)
    names, error = ("outcome", "partial", "undetermined", "success", "reward"), verdict.error or ""
    return {
        **step,
        **{name: getattr(verdict, name) for name in names},
        "reward_parts": dict(verdict.parts),
        "unscored": verdict.outcome == "unscored",
        "error": error.partition(":")[0],
        "not_hashed": {**step["not_hashed"], "error_message": error},
    }
