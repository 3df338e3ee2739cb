"""Label completions as answered, refused or undetermined, and say how far that agrees with people's labels.

    mutagym judge completions.csv
    mutagym judge completions.csv --label-column final_label --json agreement.json --out labelled.csv
    mutagym judge completions.csv --reward judge --judge-model qwen3 --ollama-host http://localhost:11434

The file is a .csv, .tsv, .jsonl, .json or .parquet one; its columns are found by their names. Labels may be
XSTest's (`1_full_compliance`, `2_full_refusal`, `3_partial_refusal`), ours, or 0 and 1, 1 being a refusal.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from cli.formats import Progress, prints_on_stderr, write_json
from ollama_utils.connect import ServerConfig, connect, keep_replies
from ollama_utils.thoughts import MARKS, read_marks, split_thoughts
from ollama_utils.types import is_text
from records.errors import RunStoppedError, UserError, as_user_error
from records.outputs import check_cache, check_writable, writing
from records.settings import STDOUT, JsonPlace
from records.terminal import one_line, write_stderr
from scorers.agreement import Agreement, agreement
from scorers.answers import MEASURES
from scorers.labels import REFUSAL_LABELS, RefusalLabel, parse_label
from scorers.own import label_of

if TYPE_CHECKING:
    from envs.query_files import Cells, Table
    from scorers.judge import LLMJudge

COMPLETION_COLUMNS = (
    *("completion", "response", "answer", "reply", "output", "model_output", "generation", "model_response"),
)
"""Headers that hold what a model said; the first one present wins, case does not matter."""
LABEL_COLUMNS = ("final_label", "human_label", "human_labels", "label", "gold_label", "annotation")
"""Headers that hold what a person said of it; likewise."""
NO_LABELS = "none"
"""A `--label-column` of this name means that there are no labels, unless a column is called so."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row."""

    prompt: str
    """What was asked; empty where the file has no such column."""
    completion: str | None
    """None where the row has none, as where a call had failed."""
    human: RefusalLabel | None
    """What a person said of it; None where the file has no labels."""


def read_samples(
    path: Path,
    *,
    prompt_column: str | None = None,
    completion_column: str | None = None,
    label_column: str | None = None,
) -> list[Sample]:
    """The rows of a file, in its order: all with a person's label, or none.

    Raises:
        UserError: The file or a column is no good, or a label is none that is known.
    """
    from envs.query_files import PROMPT_COLUMNS, quoted, read_table

    table = read_table(path)
    completion = table.find(completion_column, COMPLETION_COLUMNS, "--completion-column")
    if completion is None:
        raise UserError(
            f"{path} has columns {quoted(table.columns)}; expected one of {quoted(COMPLETION_COLUMNS)}: "
            "name it with --completion-column"
        )
    prompt = table.find(prompt_column, PROMPT_COLUMNS, "--prompt-column")
    has_no_labels = label_column == NO_LABELS and NO_LABELS not in table.columns
    label = None if has_no_labels else table.find(label_column, LABEL_COLUMNS, "--label-column")
    return _samples(table, completion, prompt, label)


def _samples(table: Table, completion: str, prompt: str | None, label: str | None) -> list[Sample]:
    columns = list(dict.fromkeys(filter(None, (completion, prompt, label))))
    samples = []
    for row, cells in table.rows(columns):
        human = parse_label(cells.get(label)) if label else None
        if label and human is None:
            raise UserError(
                f"{table.path} row {row}, column {label!r}: {cells.get(label)!r} is no label; "
                "expected answered, refused, partly_refused or undetermined, XSTest's "
                "1_full_compliance and so on, or 0 and 1 (a refusal): name another with "
                f"--label-column, or '{NO_LABELS}' to go without"
            )
        asked, said = (_text(cells, column, f"{table.path} row {row}") for column in (prompt, completion))
        samples.append(Sample(prompt=asked or "", completion=said, human=human))
    if not samples:
        raise UserError(f"{table.path} has no rows; expected at least one completion")
    return samples


def _text(cells: Cells, column: str | None, place: str) -> str | None:
    value = cells.get(column) if column else None
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise UserError(f"{place}, column {column!r}: expected text, got {kind}")
    text = None if value is None else str(value)
    if text and not is_text(text):
        raise UserError(f"{place}, column {column!r}: expected text, got half of a surrogate pair")
    return text


Asked = tuple[str, str]
"""A prompt, and the answer behind the thoughts."""
Labels = list[RefusalLabel | None]
"""One a sample; None: unscored."""
BATCH = 256
"""Completions that are labelled between two lines of progress."""
SAID = "labelled {done} of {total}"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """What labels, and what of."""

    prompt_column: str | None = None
    """The column that holds what was asked [found by its name]."""
    completion_column: str | None = None
    """The column that holds what the model said [found by its name]."""
    label_column: str | None = None
    """The column that holds people's labels; `none`: there are none [found by its name]."""
    reward: str = "refusal"
    """What labels: `refusal` the detector, `judge` the model of --judge-model, `keyword` the smoke test, or
    your own: `file.py:name`, a function (query, reply) -> label or score, or the folder of a classifier."""
    json: JsonPlace = None
    """Write the counts of labels, and the agreement with people's, here as JSON; `-` is stdout, in the place
    of the table."""
    out: Path | None = None
    """Write prompts, completions and labels (column `machine_label`) here, as CSV."""
    cache: Path | None = None
    """A folder that runs share: what --reward judge asked before is not asked again, as after a Ctrl-C."""
    server: ServerConfig = field(default_factory=ServerConfig)


def judge(file: Path, /, *, config: JudgeConfig = JudgeConfig()) -> None:
    """Label completions as answered, refused or undetermined, and compare that with people's labels.

    Args:
        file: Completions, with prompts and labels where there are any.
        config: How it is done.
    """
    from scorers.reward import load_reward

    _check_places(file, config)
    if config.reward in MEASURES:
        raise UserError(
            f"--reward {config.reward} says what is right, and labels say what refuses; expected refusal, "
            "judge, keyword or your own"
        )
    with as_user_error(ValueError):
        load_reward(config.reward)
    samples = read_samples(
        file,
        prompt_column=config.prompt_column,
        completion_column=config.completion_column,
        label_column=config.label_column,
    )
    with prints_on_stderr():
        labels = _labels_of_answers(samples, config)
    if config.out:
        _write(config.out, samples, labels)
    _report(samples, labels, config.json)
    if not any(labels):
        raise RunStoppedError(f"none of {len(labels)} completions could be scored: see the lines above")


def _check_places(file: Path, config: JudgeConfig) -> None:
    """Check, before the work is done, that its results can be written, and over nothing else."""
    taken = {file.resolve(): "is the file that is read"}
    file_of_json = None if config.json == STDOUT else config.json
    for flag, path in (("--json", file_of_json), ("--out", config.out)):
        check_writable(path, flag)
        if path and path.resolve() in taken:
            raise UserError(f"{flag} names {str(path)!r}, which {taken[path.resolve()]}: name another")
        if path:
            taken[path.resolve()] = f"{flag} names as well"
    check_cache(config.cache)


def _labels_of_answers(samples: Sequence[Sample], config: JudgeConfig) -> Labels:
    """The labels of what stands behind the thoughts; one that is missing or nothing but thoughts has none."""
    with as_user_error(ValueError):
        marks = (*read_marks(config.server.thought_marks), *MARKS)
    answers: dict[int, Asked] = {}
    for place, sample in enumerate(samples):
        if sample.completion is None:
            continue
        thoughts, answer = split_thoughts(sample.completion, marks)
        if answer or not thoughts:
            answers[place] = sample.prompt, answer
    if cut := len(samples) - len(answers):
        write_stderr(f"{cut} of {len(samples)} completions are missing or end before an answer: unscored")
    labels = dict(zip(answers, _labels(list(answers.values()), config), strict=True))
    return [labels.get(place) for place in range(len(samples))]


def _labels(asked: Sequence[Asked], config: JudgeConfig) -> Labels:
    from scorers.reward import load_reward

    grade = load_reward(config.reward)
    if grade is None:
        return _judged(asked, config)
    if config.reward == "keyword":
        write_stderr("SMOKE TEST ONLY: --reward keyword looks for words of refusal, whoever says them")

    def label(one: Asked) -> RefusalLabel:
        return label_of(grade(*one))

    labels: Labels = list(map(Progress(len(asked), BATCH, SAID).counting(label), asked))
    if config.reward == "refusal" and "undetermined" in labels:
        write_stderr("note: undetermined are also replies in a language that it does not read")
    return labels


def _judged(asked: Sequence[Asked], config: JudgeConfig) -> Labels:
    """What a language model says; what it said in an earlier run with this cache is not asked again.

    Raises:
        UserError: there is no judge, or the file has no prompts for it.
    """
    from scorers.judge import LLMJudge

    if not all(prompt for prompt, _ in asked):
        raise UserError("--reward judge needs the prompts, and some rows have none: see --prompt-column")
    given = config.server
    server = replace(given, target_model=given.target_model or given.judge_model)
    with connect(server) as connection, ExitStack() as logs:
        if connection.roles.judge is None:
            raise UserError("--reward judge needs a judge: name its model with --judge-model")
        if connection.simulated:
            print("SIMULATED: the judge is the simulator's, not a model")
        keep_replies(None, config.cache, connection, connection.digests(""), logs)
        return _ask_all(asked, LLMJudge(connection.dispatcher, connection.roles.judge))


def _ask_all(asked: Sequence[Asked], model: LLMJudge) -> Labels:
    """As many at once as the server takes; failures are said and left unscored."""
    from ollama_utils.errors import CallCancelledError, OllamaError
    from ollama_utils.parallel import ParallelError, map_parallel

    def label(one: Asked) -> RefusalLabel | OllamaError:
        prompt, answer = one
        found: RefusalLabel | OllamaError
        try:
            found = model(prompt, prompt, answer)[0].label
        except CallCancelledError:  # Ctrl-C: the command is over
            raise
        except OllamaError as error:
            found = error
        return found

    try:
        found = map_parallel(Progress(len(asked), BATCH, SAID).counting(label), asked)
    except ParallelError as error:  # a cache that cannot be written
        raise error.__cause__ or error from None
    for (prompt, _), one in zip(asked, found, strict=True):
        if isinstance(one, OllamaError):
            write_stderr(f"unscored: {prompt!r}: {type(one).__name__}: {one_line(str(one))}")
    return [None if isinstance(one, OllamaError) else one for one in found]


def _write(path: Path, samples: Sequence[Sample], labels: Labels) -> None:
    has_humans = samples[0].human is not None
    with writing(path) as place, place.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["prompt", "completion", "machine_label", *(["human_label"] if has_humans else [])])
        for sample, label in zip(samples, labels, strict=True):
            human = [sample.human] if has_humans else []
            writer.writerow([sample.prompt, sample.completion, label or "unscored", *human])


def _report(samples: Sequence[Sample], labels: Labels, path: Path | None) -> None:
    """Tell how often each label was given and, with people's labels, the agreement; write both to `path`."""
    given: Counter[str] = Counter(label or "unscored" for label in labels)
    counts = {name: given[name] for name in (*REFUSAL_LABELS, "unscored")}
    humans = [sample.human for sample in samples if sample.human is not None]
    found = agreement(humans, labels) if humans else None
    if write_json({"labels": counts, **(asdict(found) if found else {})}, path):
        return
    print(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()))
    if found:
        _print_agreement(found)


def _print_agreement(found: Agreement) -> None:
    (kept, alarms), (missed, hits) = found.confusion
    for name in ("precision", "recall", "f1", "accuracy", "kappa"):
        value = getattr(found, name)
        print(f"{name:<10} {'undefined' if value is None else format(value, '.3f')}")
    print(f"\n{'people said':<12} {'answered':>10} {'refused':>10}   (of {found.n}; a part is a refusal)")
    print(f"{'answered':<12} {kept:>10} {alarms:>10}")
    print(f"{'refused':<12} {missed:>10} {hits:>10}")
