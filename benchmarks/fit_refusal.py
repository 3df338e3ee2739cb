"""Fits the weights of `scorers.refusal` to labelled files, and shows how good they are on unseen models.

    python -m benchmarks.fit_refusal llama2orig.csv mistralguard.csv mistralinstruct.csv

Each file holds one model's completions with people's labels, as `mutagym judge` reads them. Each is left
out once: the n-grams are fitted to the others and tested on it. The weights that ship are fitted to
all. To every fit are added

- `data/smollm2_labels.jsonl`: the replies `train` of a small model, which a reader labelled (see
  `data/README.md`). `told`, under other system prompts and to other prompts, stands for what mutagym's target
  says; in `test` nearly every refusal follows turns that show one. Neither is ever fitted to;
- `data/refusal_wordings.csv`: wordings that we made up, so that the model knows more voices than three;
- replies of the simulated target (`simulator`).

What was looked at, so that the figures can be judged: the patterns are the eight most useful of 34 that were
mended by errors on every second reply of the three files and on `train`. `C`, `FEWEST` and what `grams`
counts were chosen among some seventy settings by the figures printed here; of those near the chosen ones
mistralinstruct, which has 76 refusals, scored .77 to .84. Some 130 of the wordings were written against
errors on it: its figure flatters. The last 23 wordings are answers with words of refusal ("I can't praise it
enough", "Sorry! It opens at nine"), written after short answers had come out as refusals.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from envs.labelled_files import read_samples
from envs.queries import load_queries
from scorers.agreement import agreement
from scorers.labels import REFUSALS, RefusalLabel, parse_label
from scorers.refusal import WEIGHTS, NgramModel, grams, label_refusal
from simulator.chance import digest_of
from simulator.world import load_world
from simulator.world_file import LABELS

C = 10.0
"""Inverse strength of the regularisation."""
FEWEST = 4
"""An n-gram that fewer replies have counts as unseen: it would be noise, and swell the file."""
DIGITS = 2
"""Of the numbers that are written down."""
SIMULATED = 140
"""Replies of the simulated target that are fitted to, of each label."""
DATA = Path(__file__).parent / "data"


class Replies(NamedTuple):
    """Labelled replies."""

    texts: Sequence[str]
    labels: Sequence[RefusalLabel]


def fit(parts: Sequence[Replies]) -> NgramModel:
    """The n-gram model of these replies, refusals and others weighing the same in all."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]  # no stubs
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # likewise

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


def f1(model: NgramModel, replies: Replies) -> float:
    """F1 of refusals, full or partial."""
    said = [label_refusal(text, model) for text in replies.texts]
    return agreement(replies.labels, said).f1 or 0.0


def read_labelled(path: Path) -> Replies:
    """A file that `mutagym judge` reads, with people's labels.

    Raises:
        UserError: the file or a label is no good.
    """
    samples = read_samples(path)
    texts = [one.completion or "" for one in samples]
    return Replies(texts, [one.human for one in samples if one.human])


def read_small(split: str) -> Replies:
    """The labelled replies of SmolLM2 of a split: `train`, `test` or `told`."""
    lines = map(
        json.loads, (DATA / "smollm2_labels.jsonl").read_text(encoding="utf-8").splitlines()
    )
    found = [
        (line["reply"], parse_label(line["label"])) for line in lines if line["split"] == split
    ]
    return Replies([text for text, _ in found], [label for _, label in found if label])


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
    return [
        read_labelled(DATA / "refusal_wordings.csv"),
        read_small("train"),
        simulated(0, SIMULATED),
    ]


def main() -> None:
    """Print F1 on what no fit has seen; write the weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights are written")
    arguments = parser.parse_args()
    files = {path.stem: read_labelled(path) for path in arguments.files}
    own = own_parts()
    for name, test in files.items():
        others = [replies for other, replies in files.items() if other != name]
        print(f"{name:28} F1 {f1(fit([*others, *own]), test):.3f}", flush=True)
    model = fit([*files.values(), *own])
    held_back = {split: read_small(split) for split in ("told", "test")}
    held_back |= {
        path.stem: read_labelled(path) for path in (Path("tests/scorers/data")).glob("*.jsonl")
    }
    for name, test in {**held_back, "simulated": simulated(1000, 100)}.items():
        print(f"{name:28} F1 {f1(model, test):.3f}")
    written = json.dumps(asdict(model), sort_keys=True, separators=(",", ":")).replace("],", "],\n")
    arguments.out.write_text(written + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
