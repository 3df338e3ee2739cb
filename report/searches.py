"""The tables of a search, for its command and for the page alike, from what report.json holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from records.terminal import counted
from report.table import Table, number, p_value, percent, with_interval

MOST_GENERATIONS = 12
"""The last generations, which the table has; metrics.jsonl has them all."""
MOST_PROMPTS = 10
"""Prompts of a population that the table has; results.json has them all."""
_TAKES = {
    "learning": "takes the prompt of the population that it likes best for a question",
    "random": "draws one of the prompts by chance for each question",
    "fixed": "takes the first seed prompt for each question",
}


def evolution_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """The last generations of an evolution, and its best prompt beside the seed prompt."""
    history, held_out = report["history"], report["held_out"]
    children, unscored = (sum(each[name] for each in history) for name in ("children", "unscored"))
    counts = ("children", "duplicates", "stopped", "unscored")
    yield Table(
        caption=f"{report['task']}: {counted(children, 'prompt')} in "
        f"{counted(report['generations'], 'generation')}, {unscored} of them unscored, each on "
        f"{counted(report['panel_size'], 'problem')}",
        columns=("generation", "best, solved %", "mean, solved %", "diversity", *counts, "failed"),
        rows=[
            [
                str(each["generation"]),
                percent(each["best_fitness"]),
                percent(each["mean_fitness"]),
                number(each["diversity"], digits=3),
                *(str(each[name]) for name in counts),
                f"{each['failed_steps']} of {each['model_steps']}",
            ]
            for each in history[-MOST_GENERATIONS:]
        ],
        says=f"Ended: {report['ended']}. Solved: of the scored problems of the panel, the same for "
        "all prompts. Best: by the best prompt so far, which these problems chose, so that its "
        f"share is too high; the seed prompt solved {percent(report['seed_fitness'])}. Duplicates: "
        "children that were no new prompt. Stopped: children that were surely worse than the "
        "weakest of the elite. Unscored: children of which too many calls failed. Failed: "
        "rewordings by model that got no reply; they change nothing.",
    )
    if held_out:
        yield _beside_seed("held-out problems", _two_prompts(held_out), _held_out(held_out))
    if adopted := report.get("adopted"):
        yield _beside_seed(
            "held-out problems: rewordings that are adopted",
            _two_prompts(adopted),
            "The same for the share of rewordings that are adopted. A problem is a query, and is "
            "solved where what the target says to its adopted rewording is a success.",
            share="adopted",
        )


def selection_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """The combinations of a selection, the one that is named first."""
    combinations = report["combinations"]
    names = tuple(combinations[0]["combination"])
    costs = {"seconds": 2, "tokens": 0}
    if any(row["price"] is not None for row in combinations):
        costs["price"] = 6
    rows = []
    for row in combinations:
        tokens = row["prompt_tokens"] + row["completion_tokens"]
        spent = {"seconds": row["latency_s"], "tokens": tokens, "price": row["price"]}
        rows.append(
            [
                "*" if row["is_best"] else "",
                *map(str, row["combination"].values()),
                row["verdict"],
                with_interval(row, "score", digits=3),
                *(number(spent[k] if row["datapoints"] else None, 1, d) for k, d in costs.items()),
                str(row["datapoints"]),
                str(row["errors"]),
            ]
        )
    yield Table(
        caption=f"{report['selector']} on {report['dataset']}: {report['evaluations']} "
        f"evaluations, {number(report['savings'], 100, 0)} % less than brute force",
        columns=("", *names, "verdict", "score", *costs, "n", "errors"),
        names=2 + len(names),
        rows=rows,
        says=f"{report['claim']} Score: the mean over n datapoints, an error counting as 0, with "
        "an interval for the mean over all datapoints that there might be; all intervals hold "
        "together. Seconds, tokens, and price (as of --price) are of one datapoint. Verdicts are "
        "of these datapoints, compared one by one: the interval of a combination that is ruled out "
        "may overlap that of the named one (*).",
    )


def optimization_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """What best prompt and actor solve beside the seed prompt, and the best of the population."""
    held_out, members = report["held_out"], report["population"]
    if held_out:
        yield _beside_seed(
            f"{report['actor']} actor after {report['steps']} steps: held-out problems",
            held_out,
            f"{_held_out(held_out[0])} The actor {_TAKES[report['actor']]}. Holm: p adjusted for "
            "both tests.",
        )
    yield Table(
        caption=f"prompts after {counted(report['generations'], 'generation')}",
        columns=("prompt", "edge", "reward", "tries"),
        rows=[
            [
                each["prompt"],
                number(each["edge"] if each["tries"] else None, digits=3, sign=True),
                number(each["fitness"], digits=3),
                str(each["tries"]),
            ]
            for each in members[:MOST_PROMPTS]
        ],
        says=f"{min(MOST_PROMPTS, len(members))} of {len(members)} prompts, by edge: how much more "
        "reward a prompt had than others that were tried for the same question, drawn towards 0 "
        "while tries are few. Reward: the mean over its tries of the weighted sum (--weight-...) "
        "of the scorer's feedback, the critic's score and the tokens; it may exceed 1. "
        f"{report['unscored']} of {report['candidates']} candidates have no score, as a call or "
        "the critic failed: nothing was learned from them.",
    )


def _two_prompts(compared: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The seed prompt and the best one of a comparison as rows of `_beside_seed`."""
    seed = {"name": "seed prompt", "score": compared["seed"], "queries": compared["queries"]}
    return [seed, {"name": "best prompt", "score": compared["best"], **compared}]


def _beside_seed(
    caption: str, arms: Sequence[Mapping[str, Any]], says: str, share: str = "solved"
) -> Table:
    """What the seed prompt and others score, and the differences to it."""
    ps = {"p": "p_value", "Holm": "p_holm"} if "p_holm" in arms[-1] else {"p": "p_value"}
    return Table(
        caption=caption,
        columns=("", f"{share} %", "difference, points", *ps, "better / worse", "n"),
        rows=[
            [
                arm["name"],
                percent(arm["score"]),
                *(
                    [
                        with_interval(arm, "difference", 100, sign=True),
                        *(p_value(arm[name]) for name in ps.values()),
                        f"{arm['wins']} / {arm['losses']}",
                    ]
                    if "difference" in arm
                    else [""] * (2 + len(ps))
                ),
                str(arm["queries"]),
            ]
            for arm in arms
        ],
        says=says,
    )


def _held_out(counts: Mapping[str, Any]) -> str:
    return (
        "On problems that the search did not see: the share that is solved, and the difference to "
        "the seed prompt in points, with a paired 95 % interval. p: a test of no difference. n: "
        f"problems that all have a score for; {counts['left_out']} of "
        f"{counts['queries'] + counts['left_out']} (a call failed) are left out of every row."
    )
