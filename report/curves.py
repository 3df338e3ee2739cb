"""The learning curves of the trainings on a page, beside the baselines of evaluations on it.

The settings of an evaluation say which runs it played, its report has the rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from report.charts import Chart, Data, curves
from report.run import Run
from report.training import AXES, SHARES, SUCCESS

BASELINES = ("noop", "best_fixed", "cascade")
"""Policies whose success is a line across the chart."""
SAYS = (
    "Each point is of some rollouts, an episode counted where it began; bands are 95 % intervals. "
    "A target call is a question that the target was not asked before."
)
BESIDE = (
    " The policy explores while it learns. Lines across, and its point at the right end, are of "
    "{names}: success on {split} queries, without learning or exploring."
)
ALONE = (
    " To see noop, best_fixed, cascade and the policy itself on held-out queries beside it: "
    "mutagym eval -p {run}, then mutagym report with both folders."
)


def learning_curves(runs: Sequence[Run]) -> list[Chart]:
    """The success of all trainings on a page beside the baselines, then their other measures."""
    trained = [run for run in runs if run.curve]
    if not trained:
        return []
    rows = [row for run in trained for row in run.curve]
    success = [row for row in rows if row[0] == SUCCESS]
    others = [row for row in rows if row[0] != SUCCESS]
    ends = {name: place for _, name, *place, _, _, _ in success}
    evaluations = []
    for run in runs:
        if run.command == "eval" and run.report:
            with run.or_note("Baselines"):
                if played := list(_played(run, trained)):
                    evaluations.append((run, played))
    for evaluation, played in evaluations:
        where = f", {evaluation.name}" if len(evaluations) > 1 else ""
        for run, mission, row in played:
            name = f"{run.name}, {mission['split']}{where}"
            success.append([SUCCESS, name, *ends[run.name], *_success(row)])
        missions = {mission["name"] for _, mission, _ in played}
        success += [
            [SUCCESS, f"{row['team']}{where}", None, None, *_success(row)]
            for row in evaluation.report["rates"]
            if row["team"] in BASELINES and row["policy"] is None and row["mission"] in missions
        ]
    says = ALONE.format(run=trained[0].path)
    if evaluations:
        splits = {mission["split"]: None for _, played in evaluations for _, mission, _ in played}
        names = ", ".join(evaluation.name for evaluation, _ in evaluations)
        says = BESIDE.format(names=names, split=" and ".join(splits))
    options: Chart = {"axes": AXES, "choices": len(trained) > 1, "percents": SHARES}
    return [
        curves("Learning curve", success, says=SAYS + says, wide=True, **options),
        curves("Return, refusals and failures", others, **options),
    ]


def _played(evaluation: Run, trained: Sequence[Run]) -> Iterator[tuple[Run, Data, Data]]:
    """The trainings that an evaluation played: each with a mission like its own, and its rates.

    In another mission success is another thing.
    """
    missions = {mission["name"]: mission for mission in evaluation.report["missions"]}
    for policy in evaluation.config["policy"]:
        place, comma, options = policy.removeprefix("run=").partition(",")
        folder, team = Path(place).resolve(), f"{Path(place).name}{comma}{options}"
        for run in trained:
            if folder not in {run.path, run.path.parent}:
                continue
            # A training of several seeds is named as a whole; each seed is a member of the team.
            member = None if folder == run.path else run.path.name
            for row in evaluation.report["rates"]:
                mission = missions[row["mission"]]
                is_its = (row["team"], row["policy"]) == (team, member)
                if is_its and _is_trained_on(run, mission):
                    yield run, mission, row
                    break


def _is_trained_on(run: Run, mission: Data) -> bool:
    """Whether a training had the target, the reward and the step limit of a mission."""
    target = run.facts.get("target", mission["target_model"])
    own = (target, run.config["reward"], run.config["max-steps"])
    return own == (mission["target_model"], mission["reward"], mission["max_steps"])


def _success(row: Data) -> list[float | None]:
    return [row["success"][end] for end in ("rate", "low", "high")]
