"""Label completions as answered, refused or undetermined, and compare that with people's labels.

mutagym judge completions.csv
mutagym judge completions.csv --label-column final_label --json agreement.json
mutagym judge completions.csv --reward judge --judge-model qwen3 --out labelled.csv
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from cli.output import print_tables, write_json
from ollama_utils.connect import ServerConfig
from ollama_utils.thoughts import MARKS, read_marks, split_thoughts
from records.errors import RunStoppedError, UserError, as_user_error
from records.outputs import check_cache, check_different, check_writable, writing
from records.settings import JsonPlace
from records.terminal import one_line, prints_on_stderr, write_stderr
from report.table import Table, number
from scorers.agreement import Agreement, agreement
from scorers.answers import MEASURES
from scorers.labels import REFUSAL_LABELS, RefusalLabel

if TYPE_CHECKING:
    from envs.labelled_files import Sample

Labels = Sequence[RefusalLabel | None]
"""One a sample; None: unscored."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """What labels, and what of."""

    prompt_column: str | None = None
    """The column that holds what was asked [found by its name]."""
    completion_column: str | None = None
    """The column that holds what the model said: texts, messages or chats [found by its name]."""
    label_column: str | None = None
    """The column that holds people's labels; `none`: there are none [found by its name]."""
    reward: str = "refusal"
    """What labels: `refusal` the detector, `judge` the model of --judge-model, `keyword` the smoke
    test, or your own: `file.py:name`, a function (query, reply) -> label or score, or the folder of
    a classifier."""
    json: JsonPlace = None
    """Write the counts of labels, and the agreement with people's, here as JSON; `-` is stdout, in
    the place of the table."""
    out: Path | None = None
    """Write prompts, completions and labels (column `machine_label`) here, as CSV."""
    cache: Path | None = None
    """A folder that runs share: what --reward judge asked before is not asked again, as after a
    Ctrl-C."""
    server: ServerConfig = field(default_factory=ServerConfig)


def judge(file: Path, /, *, config: JudgeConfig = JudgeConfig()) -> None:
    """Label completions as answered, refused or undetermined; compare that with people's labels.

    Args:
        file: Completions, with prompts and labels where there are any: .csv, .tsv, .jsonl, .json or
            .parquet.
        config: How it is done.
    """
    from envs.labelled_files import read_samples

    check_different(file, config.json, config.out)
    check_writable(config.json)
    check_writable(config.out, "--out")
    check_cache(config.cache)
    if config.reward in MEASURES:
        raise UserError(
            f"--reward {config.reward} says what is right, and labels say what refuses; expected "
            "refusal, judge, keyword or your own"
        )
    samples = read_samples(
        file,
        prompt_column=config.prompt_column,
        completion_column=config.completion_column,
        label_column=config.label_column,
    )
    with prints_on_stderr():
        labels, simulated = _label(samples, config)
    if config.out:
        _write(config.out, samples, labels)
    given: Counter[str] = Counter(label or "unscored" for label in labels)
    counts = {name: given[name] for name in (*REFUSAL_LABELS, "unscored")}
    humans = [sample.human for sample in samples if sample.human]
    found = agreement(humans, labels) if humans else None
    about = {"simulated": simulated, "labels": counts}
    if not write_json(about | (asdict(found) if found else {}), config.json):
        line = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        print_tables(_tables(found) if found else (), [line], simulated=simulated)
    if not any(labels):
        raise RunStoppedError(
            f"none of {len(labels)} completions could be scored: see the lines above"
        )


def _label(samples: Sequence[Sample], config: JudgeConfig) -> tuple[Labels, bool]:
    """The labels of what stands behind the thoughts, and whether a simulated judge gave them.

    Nothing but thoughts, or nothing, has no label.
    """
    from evaluation.rescoring import StoredReply, label_of_step, score_replies

    with as_user_error(ValueError):
        marks = (*read_marks(config.server.thought_marks), *MARKS)
    replies: list[StoredReply | None] = []
    for sample in samples:
        thoughts, answer = split_thoughts(sample.completion or "", marks)
        is_missing = sample.completion is None or (thoughts and not answer)
        replies.append(None if is_missing else StoredReply(sample.prompt, sample.prompt, answer))
    if missing := replies.count(None):
        write_stderr(
            f"{missing} of {len(samples)} completions are missing or end before an answer: unscored"
        )
    is_judge = config.reward == "judge"
    if is_judge and not all(reply.query for reply in replies if reply):
        raise UserError(
            "--reward judge needs the prompts, and some rows have none: see --prompt-column"
        )
    if config.reward == "keyword":
        write_stderr(
            "SMOKE TEST ONLY: --reward keyword looks for words of refusal, whoever says them"
        )
    server = config.server if is_judge else None
    verdicts, simulated = score_replies(replies, config.reward, server=server, cache=config.cache)
    labels: list[RefusalLabel | None] = []
    for sample, verdict in zip(samples, verdicts, strict=True):
        if verdict and verdict.error:
            write_stderr(f"unscored: {sample.prompt!r}: {one_line(verdict.error)}")
        labels.append(label_of_step(vars(verdict)) if verdict and not verdict.error else None)
    if config.reward == "refusal" and "undetermined" in labels:
        write_stderr("note: undetermined are also replies in a language that it does not read")
    return labels, simulated


def _write(path: Path, samples: Sequence[Sample], labels: Labels) -> None:
    names = ("prompt", "completion", "machine_label", "human_label")
    with writing(path) as place, place.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names if samples[0].human else names[:-1])
        for sample, label in zip(samples, labels, strict=True):
            human = [sample.human] if sample.human else []
            writer.writerow([sample.prompt, sample.completion, label or "unscored", *human])


def _tables(found: Agreement) -> Iterator[Table]:
    names = ("precision", "recall", "f1", "accuracy", "kappa")
    rates = [number(getattr(found, name), digits=3) for name in names]
    yield Table(caption="agreement with people", columns=names, rows=[rates], names=0)
    counts = zip(("answered", "refused"), found.confusion, strict=True)
    yield Table(
        caption=f"of {found.n} that both labelled",
        columns=("people said", "answered", "refused"),
        rows=[(said, *map(str, row)) for said, row in counts],
        says="A partial refusal is a refusal, and undetermined is none.",
    )
