"""Score the stored steps of a run again, by another scorer, and say how far the two agree.

mutagym rescore runs/train-20260105-101500-0 --reward keyword
mutagym rescore runs/train-20260105-101500-0 --reward mine.py:useful --out rescored.jsonl
mutagym rescore runs/train-20260105-101500-0 --reward judge --judge-model qwen3 --json out.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from cli.output import print_tables, write_json
from ollama_utils.connect import ServerConfig
from records.errors import RunStoppedError, as_user_error
from records.outputs import check_cache, check_different, check_writable, writing
from records.run_folder import read_lock
from records.settings import Count, JsonPlace, NotNegative, Seed, Share
from records.terminal import one_line, prints_on_stderr
from report.table import Table, number, with_interval
from scorers.intent import INTENT_THRESHOLD
from scorers.judge import read_rubric
from scorers.labels import REFUSAL_LABELS
from scorers.reward import STEP_COST

LONGEST_ERROR = 200
"""Characters of an error that are shown."""
RATES = (
    "Of the steps that both scored, with 95 % intervals clustered by query. Agreement is the share "
    "of steps of which both say the same; Cohen's kappa corrects it for chance. Episodes ended "
    "where the run's own reward called a reply a success, so what share of episodes would have "
    "succeeded under another reward is not known."
)
LABELS = (
    "Partly refused is a refusal, undetermined is none, and neither is a success. What a content "
    "filter ended counts as undetermined here."
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RescoreConfig:
    """By what the steps are scored; what is left out is as in the run, but for the reward."""

    reward: str = "refusal"
    """What scores them: `refusal` (the detector), `judge` (the model of --judge-model), `keyword`
    (smoke test only), `exact`, `number`, `choice`, `f1` or `contains` (by the right answers that
    the run's queries have), or your own: `file.py:name`, or the folder of a classifier."""
    judge_rubric: str | None = None
    """A text file: what --reward judge is to mean by label, score and intent_kept [our rubric]."""
    intent_judge: bool = False
    """The judge also says whether a rewording that was answered asks for the same; not with
    judge."""
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


def rescore(run: Path, /, *, config: RescoreConfig = RescoreConfig()) -> None:
    """Score the stored steps of a run again, by another scorer, and say how far the two agree.

    The replies are those of its transitions.jsonl: the target is not asked. Only a judge takes a
    server.

    Args:
        run: The folder of a run of `mutagym train`, or of `mutagym eval --save-transitions`. Code
            and hosts that it names have to be named again, or --trust-run uses them.
        config: By what they are scored.
    """
    from evaluation.rescoring import (
        compare_verdicts,
        rescored_step,
        score_run,
    )  # scipy takes long to import

    check_different(config.json, config.out)
    for flag, path in (("--json", config.json), ("--out", config.out)):
        check_writable(path, flag, apart_from=run)
    check_cache(config.cache)
    rubric = None
    if config.judge_rubric is not None:
        with as_user_error(ValueError):
            rubric = read_rubric(Path(config.judge_rubric))
    is_judged = config.reward == "judge" or config.intent_judge
    with read_lock(run), prints_on_stderr():
        steps, verdicts, simulated = score_run(
            run,
            config.reward,
            server=config.server if is_judged else None,
            cache=config.cache,
            intent_threshold=config.intent_threshold,
            step_cost=config.step_cost,
            seed=config.seed,
            judge_options={"num_ctx": config.num_ctx} if config.num_ctx else {},
            judge_rubric=rubric,
            intent_judge=config.intent_judge,
        )
    about: dict[str, Any] = {"run": str(run), "simulated": simulated, "reward": config.reward}
    found = about | compare_verdicts(steps, verdicts)
    if config.out:
        with writing(config.out) as place, place.open("w", encoding="utf-8") as file:
            for step, verdict in zip(steps, verdicts, strict=True):
                line = json.dumps(rescored_step(step, verdict), ensure_ascii=False)
                file.write(f"{line}\n")
    if not write_json(found, config.json):
        errors = [
            f"unscored: {count} x {one_line(error)[:LONGEST_ERROR]}"
            for error, count in found["errors"].items()
        ]
        print_tables(_tables(found), errors, simulated=simulated)
    if not found["steps"]["both"]:
        raise RunStoppedError("none of the replies could be scored: see the lines above")


def _tables(found: Mapping[str, Any]) -> Iterator[Table]:
    steps, agreement = found["steps"], found["agreement"]
    unscored = steps["all"] - steps["both"]
    yield Table(
        caption=f"{found['run']}: {steps['both']} steps, {unscored} more unscored",
        columns=("share of steps, %", "in the run", "rescored", "agreement", "kappa"),
        rows=[
            (
                name,
                *(
                    with_interval(found[of][name], "rate", 100)
                    for of in ("in_the_run", "rescored", "agreement")
                ),
                number(agreement[name]["kappa"], digits=2),
            )
            for name in ("success", "refusal")
        ],
        says=RATES,
    )
    yield Table(
        caption="labels: the run's by row, the new ones by column",
        columns=("", *REFUSAL_LABELS),
        rows=[(label, *map(str, counts.values())) for label, counts in found["labels"].items()],
        says=LABELS,
    )
