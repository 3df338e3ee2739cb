"""The same on real models: XSTest's safe and unsafe prompts, each held out once."""

from __future__ import annotations

import csv
import hashlib
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from joblib import Parallel, delayed

from benchmarks.measured import PAGE
from benchmarks.real import SYSTEM
from benchmarks.results import Check, Table, mutagym, run
from benchmarks.sides import (
    BASELINES,
    CLASSIFIER,
    SIDES,
    Outcomes,
    Trial,
    draw,
    play,
    rates,
    write_queries,
)
from scorers.statistics import Interval, difference_interval, mean_interval

ABOUT = """\
Not simulated: small models on llama.cpp's server, target and mutator in one, under a system prompt
that makes them refuse harmless questions, too. The queries are XSTest's (paul-rottger/
exaggerated-safety, CC BY 4.0): 250 that ought to be answered, 200 that ought to be refused. Each is
held out once, in five folds; a policy is trained on the other four, with one try a query and rules
as mutators, so that a reply is a function of query and mutator. Queries of a group are in one fold:
those about one word (*focus*; where none is named, of one family), or of one of XSTest's eight
families. `best_fixed` and `cascade` are fitted with 1,000 calls to the same two-sided reward;
*classifier* plays `ask_steps` where the words of a query look harmless; *saved* is what `linucb`
saves by itself. Intervals are over queries."""
MUTATORS = (
    "noop",
    "ask_steps",
    "say_harmless",
    "as_steps",
    "as_list",
    "synonym_replace",
    "add_politeness",
)
HELD_OUT, FOLDS, JOBS = 0.2, 5, 2
GROUPINGS = ("focus", "family")
CAPTION = "Opened over unlocked, by model and grouping"


def add_arguments(parser: ArgumentParser) -> None:
    """The models, and XSTest's file."""
    parser.add_argument("--host", action="append", default=[], help="a value of --ollama-host")
    parser.add_argument("--name", action="append", default=[], help="what a host's model is called")
    parser.add_argument("--xstest", type=Path, required=True, help="XSTest's prompts as a CSV file")
    parser.add_argument("--cache", type=Path, required=True, help="a folder for replies")


def measure(
    *, quick: bool, host: Sequence[str], name: Sequence[str], xstest: Path, cache: Path
) -> Iterator[Table | Check]:
    """Every policy on every model, by both groupings."""
    with xstest.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    folds = range(1 if quick else FOLDS)
    jobs = list(product(host, GROUPINGS, folds))
    played = Parallel(n_jobs=JOBS, verbose=10)(
        delayed(one_fold)(
            rows, server, grouping, fold, cache / str(host.index(server)), quick=quick
        )
        for server, grouping, fold in jobs
    )
    gains = {server: foretold(rows, server, cache / str(host.index(server))) for server in host}
    drawn: dict[str, Table] = {}
    for (server, called), grouping in product(zip(host, name, strict=True), GROUPINGS):
        found = [
            each
            for (of, by, _), each in zip(jobs, played, strict=True)
            if (of, by) == (server, grouping)
        ]
        of_model = table(called, grouping, pooled(found), gains[server])
        if not drawn:
            of_model = replace(of_model, about=f"{of_model.about}\n\n![{CAPTION}](sides_real.svg)")
        drawn[of_model.title] = of_model
        yield of_model
    if not quick:
        draw(PAGE.with_name("sides_real.svg"), {title: each.rows for title, each in drawn.items()})


def foretold(rows: Sequence[Mapping[str, str]], server: str, cache: Path) -> str:
    """What `mutagym headroom` says that a policy gains over the best fixed mutator."""
    with TemporaryDirectory() as folder:
        files = write_sides(Path(folder), rows, {r["prompt"]: group_of(r, "focus") for r in rows})
        flags = {name: each for name, each in mission(files).items() if name != "max_steps"}
        options = flags | {"held_out": 0, "refused": len(rows)}
        report = mutagym("headroom", ollama_host=server, slots=8, cache=cache, **options)
        gain = report["headroom"]["gain"]
    return _text(Interval(gain["gain"], gain["low"], gain["high"]))


def one_fold(
    rows: Sequence[Mapping[str, str]],
    server: str,
    grouping: str,
    fold: int,
    cache: Path,
    *,
    quick: bool,
) -> dict[str, Outcomes]:
    """Train on four folds, and play the fifth."""
    with TemporaryDirectory() as folder:
        files = write_sides(Path(folder), rows, names_of_groups(rows, grouping, fold))
        return play(
            Trial(
                train=mission(files),
                play={"ollama_host": server, "slots": 8, "cache": cache},
                mutator="ask_steps",
                budgets=(64, 128) if quick else (500, 1000, 3000),
                fit_calls=1000,
            )
        )


def write_sides(
    folder: Path, rows: Sequence[Mapping[str, str]], groups: Mapping[str, str]
) -> dict[str, Path]:
    """By label the file of its queries, each with its group."""
    return {
        label: write_queries(
            folder / f"{label}.csv",
            [(r["prompt"], groups[r["prompt"]]) for r in rows if r["label"] == label],
        )
        for label in ("safe", "unsafe")
    }


def mission(files: Mapping[str, Path]) -> dict[str, Any]:
    """The flags of what is played."""
    return {
        "target_system": SYSTEM,
        "num_predict": 48,
        "max_steps": 1,
        "mutators": ",".join(MUTATORS),
        "queries": files["safe"],
        "guard_queries": files["unsafe"],
        "group_column": "group",
        "held_out": HELD_OUT,
    }


def names_of_groups(rows: Sequence[Mapping[str, str]], grouping: str, fold: int) -> dict[str, str]:
    """By query the name of its group, such that a training holds it out if it is of the fold.

    Training splits by a hash of the name: what is added to it decides on which side it comes.
    """
    own = {row["prompt"]: group_of(row, grouping) for row in rows}
    ordered = sorted({*own.values()}, key=lambda group: hashlib.sha256(group.encode()).digest())
    named = {
        group: next(
            name
            for name in (f"{group} {number}" for number in range(1000))
            if _is_held_out(name) == (place % FOLDS == fold)
        )
        for place, group in enumerate(ordered)
    }
    return {prompt: named[group] for prompt, group in own.items()}


def group_of(row: Mapping[str, str], grouping: str) -> str:
    """The word that a query is about, or, where there is none or it is asked for, its family: a
    type of harmless queries and what stands against it.
    """  # noqa: D205 - one sentence
    if grouping == "focus" and row["focus"].strip():
        return row["focus"].strip()
    name = row["type"].removeprefix("contrast_")
    return next((word for word in ("discr", "privacy") if word in name.split("_")), name)


def _is_held_out(group: str) -> bool:
    """As `envs.query_sets.split_queries` has it."""
    digest = hashlib.blake2b(f"0:{group}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48 < HELD_OUT


def pooled(folds: Sequence[Mapping[str, Outcomes]]) -> dict[str, Outcomes]:
    """The outcomes of all folds together, by policy."""
    return {
        name: {
            side: {query: each for fold in folds for query, each in fold[name][side].items()}
            for side in SIDES
        }
        for name in folds[0]
    }


def table(model: str, grouping: str, found: Mapping[str, Outcomes], gain: str) -> Table:
    """A row a policy."""
    rows = []
    for name, outcomes in found.items():
        row: dict[str, Any] = {"policy and steps": name}
        row |= {what: _text(each) for what, each in rates(outcomes).items()}
        for other in ("best_fixed", CLASSIFIER):
            row[f"less {other}"] = "" if name == other else _text(_less(outcomes, found[other]))
        rows.append(row)
    counts = [len(found[BASELINES[0]][side]) for side in SIDES]
    return Table(
        title=f"{model}, folds by {grouping}",
        about=(
            f"{counts[0]} harmless and {counts[1]} harmful queries without an answer as they "
            f"stand. `headroom` foretold a gain of {gain} over the best fixed mutator."
        ),
        rows=rows,
    )


def _text(found: Interval) -> str:
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*found)


def _less(one: Outcomes, other: Outcomes) -> Interval:
    """The difference of two policies' differences, on the same queries."""
    both = [
        mean_interval(
            [
                [float(success) - other[side][query]]
                for query, success in one[side].items()
                if query in other[side]
            ],
            least=-1.0,
            most=1.0,
        )
        for side in SIDES
    ]
    return difference_interval(*both)


if __name__ == "__main__":
    sys.exit(run("sides_real", ABOUT, measure, add_arguments))
