"""Score the stored steps of a run again, by another scorer or judge, and say how far the two agree.

    mutagym rescore runs/train-20260105-101500-0 --reward keyword
    mutagym rescore runs/train-20260105-101500-0 --reward mine.py:useful --out rescored.jsonl
    mutagym rescore runs/train-20260105-101500-0 --reward judge --judge-model qwen3 --json agreement.json

The target is not asked again: the replies are those of transitions.jsonl. Only a judge takes a server.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from cyclopts import Parameter

from cli.formats import Progress, new_table, number, print_parts, prints_on_stderr, with_interval, write_json
from envs.transitions import check_transition
from ollama_utils.connect import Connection, ServerConfig, connect, keep_replies
from ollama_utils.types import Completion
from records.errors import RunStoppedError, UserError, as_user_error
from records.json_lines import MOST_QUERIES_BYTES
from records.outputs import check_cache, check_writable, writing
from records.run_folder import QUERIES, RecordedRun, check_is_run, read_lock, seed_folders
from records.settings import Count, JsonPlace, NotNegative, Seed, Share
from records.terminal import one_line, write_stderr
from scorers.agreement import agreement
from scorers.answers import MEASURES
from scorers.intent import INTENT_THRESHOLD
from scorers.judge import read_rubric
from scorers.labels import REFUSAL_LABELS, REFUSALS, RefusalLabel
from scorers.reward import STEP_COST, Scorer, Verdict, load_reward, make_scorer

Record = Mapping[str, Any]
MOST_AT_ONCE = 256
"""Cases that are judged at once; how many calls are under way the server's slots decide."""
CALLS_A_VERDICT = 2
"""At most: a judge's reply that is no verdict is asked to be repaired once."""
SAY_EVERY = 256
"""Replies that are scored between two lines of progress."""
COLUMNS = ("share of steps, %", "in the run", "rescored", "agreement", "kappa")
MOST_ERRORS = 3
"""Different errors that are told."""
LONGEST_ERROR = 200
"""Characters of an error that are shown."""
RATES = (
    "Of the steps that both scored, with 95 % intervals clustered by query. Agreement: both say success, or "
    "refusal, or neither does; kappa (Cohen's) is that beyond chance. Episodes ended where the run's own "
    "reward called a reply a success, so what share of episodes another would have called one is not known."
)
LABELS = (
    "Partly refused is a refusal, undetermined is none, and neither is a success. What a content filter "
    "ended counts as undetermined here."
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RescoreConfig:
    """By what the steps are scored; what is not said is as it was in the run, but for the reward."""

    reward: str = "refusal"
    """What scores them: `refusal` (the detector), `judge` (the model of --judge-model), `keyword` (smoke test
    only), `exact`, `number`, `choice`, `f1` or `contains` (by the right answers that the run's queries have),
    or your own: `file.py:name`, or the folder of a classifier."""
    judge_rubric: str | None = None
    """A text file: what --reward judge is to mean by label, score and intent_kept [our rubric]."""
    intent_judge: bool = False
    """The judge also says whether a rewording that was answered asks for the same; not with judge."""
    intent_threshold: Share = INTENT_THRESHOLD
    """Similarity to the original from which on the intent counts as kept [the run's]."""
    step_cost: NotNegative = STEP_COST
    """What a step costs [the run's]."""
    num_ctx: Count | None = None
    """Context length of the judge [the run's, else the server's]."""
    seed: Seed = 0
    """Seed of the judge's calls [the run's]."""
    json: JsonPlace = None
    """Write the rates and the agreement here."""
    out: Path | None = None
    """Write the lines of transitions.jsonl with their new scores here."""
    cache: Path | None = None
    """A folder that runs share: what a judge was asked before is not asked again."""
    server: ServerConfig = field(default_factory=ServerConfig)

    @property
    def asks(self) -> bool:
        """Whether a judge is asked."""
        return self.reward == "judge" or self.intent_judge


class StoredReply(NamedTuple):
    """What a scorer is shown of a step; equal ones are scored once."""

    original: str
    query: str
    reply: str
    truncated: bool
    filtered: bool
    similarity: float


def rescore(run: Path, /, *, config: RescoreConfig = RescoreConfig()) -> None:
    """Score the stored steps of a run again, by another scorer or judge, and say how far the two agree.

    The replies are those of its transitions.jsonl: the target is not asked. Only a judge takes a server.

    Args:
        run: The folder of a run of `mutagym train`, or of `mutagym eval --save-transitions`. Code and hosts
            that it names have to be named again, or --trust-run uses them.
        config: By what they are scored.
    """
    with prints_on_stderr():
        _check(run, config)
    with read_lock(run):
        _rescore(run, config)


def _rescore(run: Path, config: RescoreConfig) -> None:
    with prints_on_stderr():
        folders = seed_folders(run) or [run]
        cases = [None if line["unscored"] else _stored_reply(line) for line in _lines(folders, write_stderr)]
        different = list(dict.fromkeys(case for case in cases if case))
        if not different:
            raise UserError(f"the run {str(run)!r} has no scored step: nothing can be scored again")
        answers = _answers(folders) if config.reward in MEASURES else {}
        scored = dict(zip(different, _score(different, config, answers), strict=True))
    verdicts = [scored[case] if case else None for case in cases]
    report = _report(run, config, _lines(folders), verdicts)
    if config.out:
        _write(config.out, _lines(folders), verdicts)
    if not write_json(report, config.json):
        _print(report, simulated=report["simulated"])
    if not report["steps"]["both"]:
        raise RunStoppedError(f"none of {len(different)} replies could be scored: see the lines above")


def _check(run: Path, config: RescoreConfig) -> None:
    """Check what can be checked before the work is done."""
    check_is_run(run, "RUN")
    for flag, path in (("--json", config.json), ("--out", config.out)):
        check_writable(path, flag, apart_from=run)
    check_cache(config.cache)
    with as_user_error(ValueError):
        load_reward(config.reward)


def _lines(folders: Sequence[Path], say: Callable[[str], None] = lambda _text: None) -> Iterator[Record]:
    """Those of transitions.jsonl, but for guard queries, which ought to be refused.

    Args:
        folders: the run's, or those of its seeds.
        say: is told of lines that are not there.
    """
    for folder in folders:
        run, read = RecordedRun(folder), 0
        for line in run.read_transitions(check_transition):
            read += 1
            if not line.get("guard"):
                yield line
        if missing := run.missing_lines(read):
            say(f"note: {missing}")


def _stored_reply(line: Record) -> StoredReply:
    return StoredReply(
        original=line["original_query"],
        query=line["mutated_query"] if line["adopted"] else line["query_before"],
        reply=line["reply"],
        truncated=line["reply_truncated"],
        filtered=line["outcome"] == "filtered",
        similarity=line["intent_similarity"],
    )


def _answers(folders: Sequence[Path]) -> dict[str, Sequence[str]]:
    """The right answers to the run's queries, as the folders have them.

    Raises:
        UserError: there are none.
    """
    found: dict[str, Sequence[str]] = {}
    for folder in folders:
        record = RecordedRun(folder).read_json(QUERIES, MOST_QUERIES_BYTES)
        for of_it in [record, *record.get("sets", [])]:
            found |= of_it.get("answers", {})
    if not found:
        raise UserError(
            f"{str(folders[0] / QUERIES)!r} has no right answers, for the file of its queries had none: they "
            "cannot be compared with replies"
        )
    return found


def _score(
    cases: Sequence[StoredReply], config: RescoreConfig, answers: Mapping[str, Sequence[str]]
) -> list[Verdict]:
    """The verdict on each; those of a judge as many at once as its server takes."""
    progress = Progress(len(cases), SAY_EVERY, "scored {done} of {total} different replies")
    if not config.asks:
        return list(map(progress.counting(_scorer(config, None, answers)), cases))
    from ollama_utils.monitor import counted
    from ollama_utils.parallel import ParallelError, map_parallel

    judge = config.server.judge_model
    server = replace(config.server, target_model=judge, mutator_model=judge)  # no other is called
    with connect(server, named_by="--judge-model") as connection, ExitStack() as logs:
        score = _scorer(config, connection, answers)
        if connection.simulated:
            write_stderr("SIMULATED: the judge is the simulator's, not a model")
        keep_replies(None, config.cache, connection, connection.digests(""), logs)
        write_stderr(f"{len(cases)} different replies to judge, {counted(CALLS_A_VERDICT * len(cases))}")
        try:
            return map_parallel(progress.counting(score), cases, MOST_AT_ONCE)
        except ParallelError as error:  # a cache that cannot be written
            raise error.__cause__ or error from None


@as_user_error(ValueError)
def _scorer(
    config: RescoreConfig, connection: Connection | None, answers: Mapping[str, Sequence[str]]
) -> Callable[[StoredReply], Verdict]:
    rubric = read_rubric(Path(config.judge_rubric)) if config.judge_rubric is not None else None
    scorer: Scorer = make_scorer(
        config.reward,
        dispatcher=connection.dispatcher if connection else None,
        judge_model=connection.roles.judge if connection else None,
        intent_threshold=config.intent_threshold,
        step_cost=config.step_cost,
        seed=config.seed,
        judge_options={"num_ctx": config.num_ctx} if config.num_ctx else {},
        judge_rubric=rubric,
        intent_judge=config.intent_judge,
        answers=answers,
    )

    def score(stored: StoredReply) -> Verdict:
        reply = Completion(text=stored.reply, truncated=stored.truncated, filtered=stored.filtered)
        return scorer(stored.original, stored.query, reply, stored.similarity)

    return score


def _label(told: Mapping[str, Any]) -> RefusalLabel:
    """The label behind what is told of a scored step, by its line or its verdict."""
    if told["outcome"] == "refused":
        return "partly_refused" if told["partial"] else "refused"
    is_answer = told["outcome"] == "answered" and not told.get("undetermined")
    return "answered" if is_answer else "undetermined"


def _report(
    run: Path, config: RescoreConfig, lines: Iterator[Record], verdicts: Sequence[Verdict | None]
) -> dict[str, Any]:
    """Rates and agreement as plain data."""
    pairs = [(line, vars(new)) for line, new in zip(lines, verdicts, strict=True) if new]
    both = [(line, new) for line, new in pairs if new["outcome"] != "unscored"]
    errors = Counter(new["error"] for _, new in pairs if new["outcome"] == "unscored")
    old, new = ([pair[k] for pair in both] for k in (0, 1))
    queries = [line["original_query"] for line in old]
    return {
        "run": str(run),
        "simulated": RecordedRun(run).simulated,
        "reward": config.reward,
        "steps": {
            "all": len(verdicts),
            "both": len(both),
            "unscored_in_the_run": len(verdicts) - len(pairs),
            "unscored_now": len(pairs) - len(both),
        },
        "in_the_run": _rates(queries, old),
        "rescored": _rates(queries, new),
        "agreement": {
            "success": _agreement(
                queries, *([_as_label(told["success"]) for told in each] for each in (old, new))
            ),
            "refusal": _agreement(queries, *([_label(told) for told in each] for each in (old, new))),
        },
        "labels": _labels(map(_label, old), map(_label, new)),
        "errors": dict(errors.most_common(MOST_ERRORS)),
    }


def _rates(queries: Sequence[str], told: Sequence[Record]) -> dict[str, Any]:
    from evaluation.rates import rate  # scipy takes long to import

    happened = {"success": [each["success"] for each in told]}
    happened |= {"refusal": [each["outcome"] == "refused" for each in told]}
    return {name: rate(zip(queries, each, repeat(1))) for name, each in happened.items()}


def _as_label(success: bool) -> RefusalLabel:  # noqa: FBT001 - what is turned into a label
    return "answered" if success else "refused"


def _agreement(
    queries: Sequence[str], before: Sequence[RefusalLabel], now: Sequence[RefusalLabel]
) -> dict[str, Any]:
    """How often both say the same of a refusal, with the interval of that, and Cohen's kappa."""
    from evaluation.rates import rate

    same = ((a in REFUSALS) == (b in REFUSALS) for a, b in zip(before, now, strict=True))
    return rate(zip(queries, same, repeat(1))) | {"kappa": agreement(before, now).kappa}


def _labels(before: Iterable[RefusalLabel], now: Iterable[RefusalLabel]) -> dict[str, dict[str, int]]:
    """How often the run said the one and the new scorer the other: by the run's label, then by the new."""
    counts = Counter(zip(before, now, strict=True))
    return {a: {b: counts[a, b] for b in REFUSAL_LABELS} for a in REFUSAL_LABELS}


def _write(path: Path, lines: Iterator[Record], verdicts: Sequence[Verdict | None]) -> None:
    """The lines of the run with their new scores; those that the run has unscored stay as they are."""
    with writing(path) as place, place.open("w", encoding="utf-8") as file:
        for line, verdict in zip(lines, verdicts, strict=True):
            file.write(
                json.dumps({**line, **(_scores(verdict) if verdict else {})}, ensure_ascii=False) + "\n"
            )


def _scores(verdict: Verdict) -> dict[str, Any]:
    """What a line of transitions.jsonl says of a score, by its keys there."""
    is_unscored = verdict.outcome == "unscored"
    return {
        **{
            name: getattr(verdict, name)
            for name in ("outcome", "partial", "undetermined", "success", "reward")
        },
        "reward_parts": dict(verdict.parts),
        "unscored": is_unscored,
        "error": (verdict.error or "").partition(":")[0],
    }


def _print(report: Record, *, simulated: bool) -> None:
    """Print the report for people."""
    steps = report["steps"]
    left_out = steps["all"] - steps["both"]
    rates = new_table(f"{report['run']}: {steps['both']} steps, {left_out} more unscored", *COLUMNS)
    for name in ("success", "refusal"):
        told = (with_interval(report[by][name], "rate", "{:.1f}", 100) for by in ("in_the_run", "rescored"))
        same = report["agreement"][name]
        alike = with_interval(same, "rate", "{:.1f}", 100)
        rates.add_row(name, *told, alike, number(same["kappa"], "{:.2f}"))
    labels = new_table("labels: the run's by row, the new ones by column", "", *REFUSAL_LABELS)
    for label, counts in report["labels"].items():
        labels.add_row(label, *(str(counts[each]) for each in REFUSAL_LABELS))
    problems = [
        f"unscored: {count} x {one_line(error)[:LONGEST_ERROR]}" for error, count in report["errors"].items()
    ]
    print_parts([([rates], RATES), ([labels], LABELS)], problems, simulated=simulated)
