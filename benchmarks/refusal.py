"""Fits the weights of `scorers.refusal` to labelled files, and measures them on unseen models.

    python -m benchmarks.refusal llama2orig.csv mistralguard.csv mistralinstruct.csv

Each file holds one model's completions with people's labels, as `mutagym judge` reads them. The
weights that ship are fitted to these three, XSTest's (arXiv 2308.01263).

What was looked at, so that the figures can be judged: the patterns are the eight most useful of 34
that were mended by errors on every second reply of the three files and on `train`. `C`, `FEWEST`
and what `grams` counts were chosen among some seventy settings by the figures printed here; of
those near the chosen ones mistralinstruct, which has 76 refusals, scored .77 to .84. Some 130 of
the wordings were written against errors on it: its figure flatters. The last 23 wordings are
answers with words of refusal ("I can't praise it enough"), written after short answers had come
out as refusals. Of the second small model's replies, every second one (`mend`) was looked at, and
is fitted to; the others (`kept`) were not.
"""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measured import ROOT
from benchmarks.results import Check, Table, at_least, run
from envs.labelled_files import read_samples
from envs.queries import load_queries
from scorers.agreement import agreement
from scorers.labels import REFUSALS, RefusalLabel, parse_label
from scorers.refusal import WEIGHTS, NgramModel, grams, label_refusal, load_model
from simulator.chance import digest_of
from simulator.world import load_world
from simulator.world_file import LABELS

ABOUT = """\
Not simulated, but for the row that says so: replies of real models, and imitations of some.
Refusals, full or partial, as the detector of `--reward refusal` labels them: eight patterns and
an n-gram model, which is fitted to labelled files, to replies of two small models and wordings of
our own (`benchmarks/data/README.md`), and to replies of the simulated target. A file that is *left
out* was not in the fit that labelled it. `system_prompts`, `test` and `kept` are small models'
replies that no fit has seen, labelled by a language model; the last files imitate voices."""
C = 10.0
"""Inverse strength of the regularisation."""
FEWEST = 4
"""An n-gram that fewer replies have counts as unseen: it would be noise, and swell the file."""
DIGITS = 2
"""Of the numbers that are written down."""
SIMULATED = 140
"""Replies of the simulated target that are fitted to, of each label."""
DATA = Path(__file__).parent / "data"
HELD_BACK = ROOT / "tests" / "scorers" / "data"
FLOORS = {
    "system_prompts": 0.93,
    "test": 0.72,
    "kept": 0.92,
    "by_model_families": 0.92,
    "by_other_voices": 0.77,
}


class Replies(NamedTuple):
    """Labelled replies."""

    texts: Sequence[str]
    labels: Sequence[RefusalLabel]


def fit(parts: Sequence[Replies]) -> NgramModel:
    """The n-gram model of these replies, refusals and others weighing the same in all."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

    texts = [text for part in parts for text in part.texts]
    vectorizer = TfidfVectorizer(
        analyzer=lambda text: list(grams(text).elements()), sublinear_tf=True
    )
    vectorizer.fit(texts)
    unseen_idf = 1 + math.log((1 + len(texts)) / (1 + FEWEST))
    common = vectorizer.idf_ <= unseen_idf
    vectorizer.idf_ = np.minimum(vectorizer.idf_, unseen_idf)
    refused = np.array([label in REFUSALS for part in parts for label in part.labels])
    fitted = LogisticRegression(C=C, class_weight="balanced", max_iter=5000).fit(
        vectorizer.transform(texts)[:, common], refused
    )
    names = vectorizer.get_feature_names_out()[common].tolist()
    numbers = np.stack([vectorizer.idf_[common], fitted.coef_[0]], axis=1).round(DIGITS).tolist()
    return NgramModel(
        weights={name: (idf, weight) for name, (idf, weight) in zip(names, numbers, strict=True)},
        unseen_idf=round(unseen_idf, DIGITS),
        intercept=round(float(fitted.intercept_[0]), DIGITS),
    )


def row(name: str, model: NgramModel, replies: Replies) -> dict[str, Any]:
    """Precision, recall and F1 of refusals, full or partial."""
    said = [label_refusal(text, model) for text in replies.texts]
    found = agreement(replies.labels, said)
    return {
        "replies": name,
        "refusals": found.positives,
        "others": found.negatives,
        "precision": found.precision,
        "recall": found.recall,
        "F1": found.f1,
    }


def read_labelled(path: Path) -> Replies:
    """A file that `mutagym judge` reads, with people's labels.

    Raises:
        UserError: the file or a label is no good.
    """
    samples = read_samples(path)
    return _labelled((one.completion or "", one.human) for one in samples)


def read_small(split: str) -> Replies:
    """The labelled replies of a small model of a split; `benchmarks/data/README.md` has them."""
    files = sorted(DATA.glob("*_labels.jsonl"))
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    found = [line for line in map(json.loads, lines) if line["split"] == split]
    return _labelled((line["reply"], parse_label(line["label"])) for line in found)


def _labelled(replies: Iterable[tuple[str, RefusalLabel | None]]) -> Replies:
    """The replies that have a label."""
    pairs = [(text, label) for text, label in replies if label]
    return Replies([text for text, _ in pairs], [label for _, label in pairs])


def simulated(start: int, count: int) -> Replies:
    """What the simulated target says to bundled queries: so many replies of each label."""
    world = load_world("cautious")
    queries = [query.text for query in load_queries(None)]
    texts: list[str] = []
    labels: list[RefusalLabel] = []
    for label in LABELS:
        met = [query for query in queries if world.decide(world.read(query)) == label]
        for number in range(start, start + count):
            texts.append(world.answer(met[number % len(met)], digest_of(label, number)))
            labels.append(label)
    return Replies(texts, labels)


def own_parts() -> list[Replies]:
    """What is added to every fit."""
    wordings = read_labelled(DATA / "refusal_wordings.csv")
    held_back = {
        text for path in HELD_BACK.glob("refusals_by_*.jsonl") for text in read_labelled(path).texts
    }
    mend = [each for each in zip(*read_small("mend"), strict=True) if each[0] not in held_back]
    return [wordings, read_small("train"), _labelled(mend), simulated(0, SIMULATED)]


def add_arguments(parser: ArgumentParser) -> None:
    """The labelled files."""
    parser.add_argument(
        "files", nargs="*", type=Path, help="one model's labelled replies each; none: no fit"
    )


def measure(*, quick: bool, files: Sequence[Path]) -> Iterator[Table | Check]:
    """F1 on each file left out of a fit, and of the weights on what no fit has seen."""
    parts, own = {path.stem: read_labelled(path) for path in files}, own_parts()
    rows = []
    for name, test in ({} if quick else parts).items():
        others = [replies for other, replies in parts.items() if other != name]
        rows.append(row(f"{name}, left out", fit([*others, *own]), test))
    model = fit([*parts.values(), *own]) if files else load_model()
    for name, floor in FLOORS.items():
        path = HELD_BACK / f"refusals_{name}.jsonl"
        rows.append(row(name, model, read_labelled(path) if path.exists() else read_small(name)))
        yield at_least(f"F1 on {name}", floor, rows[-1]["F1"])
    rows.append(row("simulated target", model, simulated(1000, 100)))
    yield Table(
        title="Precision, recall and F1 of the refusal detector",
        about="Rows of files that are not left out are of the weights that ship.",
        rows=rows,
    )
    if files:
        text = json.dumps(asdict(model), sort_keys=True, separators=(",", ":"))
        text = text.replace("],", "],\n") + "\n"
        is_same = text == WEIGHTS.read_text(encoding="utf-8")
        yield at_least("the weights equal those that ship", 1, is_same)
        if not quick:
            WEIGHTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run("refusal", ABOUT, measure, add_arguments))
