"""Fits the weights of `scorers.refusal` to labelled files, and shows what they are worth on unseen models.

    python -m benchmarks.fit_refusal llama2orig.csv mistralguard.csv mistralinstruct.csv

Each file holds one model's completions with people's labels, as `mutagym judge` reads them. Each is left out
once: the cascade is fitted to the other two, with every setting (regularisation, the gate,
the share of embeddings, and when n-grams are unsure) chosen on these two by fitting to one and validating on
the other, both ways; then it is tested on the third. The weights that ship are fitted to all files, with
settings chosen in the same way, each file left out.

To every fit are added

- `data/refusal_wordings.csv`: wordings that we made up, so that the cascade knows more voices than the three
  models have. No model said them, and none is from XSTest;
- replies of the simulated target (`ollama_utils.simulator`), so that training against it does not wait for
  embeddings.

What was looked at, so that the figures can be judged:

- The rules were mended by errors on every second reply of these three files, so each line also gives F1 on
  the replies that were not looked at then.
- The errors on mistralinstruct were looked at once, and some 130 of the wordings were written against them:
  its figure flatters.
- The design, that is the grid, the rule of `TOLERANCE`, and which pieces of a reply are encoded, was settled
  after seeing the figures of several on these very files. Inside a design every setting is chosen without
  the file that is left out; the design itself was not. `PERSONA_REPLIES` was chosen among 60, 100, 140 and
  240, so that hardly an answer of the persona is called a refusal; 240 cost mistralinstruct .02.
- The two held-back sets (`tests/scorers/data/`) are never fitted to, but their figures were seen between
  designs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.refusal_fitting import (
    Array,
    Replies,
    Settings,
    asks_embeddings,
    fit,
    odds_of,
    read_replies,
    to_json,
    verdicts,
    with_margin,
)
from envs.queries import load_queries
from ollama_utils.encoders import Encoder, make_encoder
from ollama_utils.simulator.chance import digest_of
from ollama_utils.simulator.personas.target import LABELS
from ollama_utils.simulator.personas.world import load_persona
from scorers.refusal_models import WEIGHTS
from train.judge_table import read_samples

OWN_WORDINGS = Path(__file__).parent / "data" / "refusal_wordings.csv"
SOURCE = "fitted to the labels of paul-rottger/exaggerated-safety (CC BY 4.0) and to wordings of our own"
LENGTHS = (2,)
GRID = [
    Settings(words=words, c_ngrams=cn, c_embeddings=ce, gate=gate, embedding_share=share)
    for words, cn, ce, gate, share in product(
        LENGTHS, (10.0, 30.0), (1.0, 3.0), (0.3, 0.35, 0.4, 0.45, 0.5), (0.5, 1.0)
    )
]
TOLERANCE = 0.01
"""F1 on the files that may be given for F1 on other voices: less than its standard error there."""
UNSURE = 0.15
"""The share of validation replies that reach the embeddings: what 200 labels a second leave time for."""
PERSONA_REPLIES = 140
"""Replies of the simulated target that are added to every fit, of each label."""


class Fold(NamedTuple):
    """What is fitted to, and what it is validated on."""

    test: Replies
    files: Sequence[Replies]
    own: Sequence[Replies]


class Own:
    """What is added to every fit: our own wordings, also in halves, and the simulated target's replies."""

    def __init__(self, wordings: Replies, simulated: Replies) -> None:
        self.halves = [wordings.part(k, 2) for k in range(2)]
        self.simulated = simulated
        self.all = [wordings, simulated]


def main() -> None:
    """Evaluate, fit and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="labelled files, one a model, at least three")
    parser.add_argument(
        "--out", type=Path, default=WEIGHTS, help="where the weights are written [%(default)s]"
    )
    arguments = parser.parse_args()
    if len(arguments.files) < 3:  # noqa: PLR2004 - one to fit to, one to validate on, one to test on
        parser.error(f"expected at least three labelled files, got {len(arguments.files)}")
    encoder = make_encoder("all-MiniLM-L6-v2")
    files = {path.stem: _labelled(path, encoder) for path in arguments.files}
    own = Own(_labelled(OWN_WORDINGS, encoder), _simulated(encoder))
    leave_one_out(files, own)
    settings = choose(list(files.values()), own)
    print(f"ships: {settings}")
    table = {"source": SOURCE} | to_json(fit(list(files.values()), own.all, settings))
    arguments.out.parent.mkdir(exist_ok=True)
    written = json.dumps(table, sort_keys=True, separators=(",", ":")).replace("],", "],\n")
    arguments.out.write_text(written + "\n", encoding="utf-8")


def leave_one_out(files: dict[str, Replies], own: Own) -> None:
    """Print what a cascade fitted to the other files is worth on each."""
    print(
        "left out, F1: cascade · not looked at · rules and n-grams alone · rules alone · share of embeddings"
    )
    scores = []
    for name, test in files.items():
        others = [replies for other, replies in files.items() if other != name]
        settings = choose(others, own)
        model = fit(others, own.all, settings)
        odds = odds_of(model, test)
        whole = verdicts(model, test, odds)
        early = verdicts(replace(model, margin=0.0), test, odds)
        unseen = np.arange(len(odds)) % 2 == 1
        row = (
            f1(test.refused, whole),
            f1(test.refused[unseen], whole[unseen]),
            f1(test.refused, early),
            f1(test.refused, test.by_rules),
            float(asks_embeddings(model, test, odds).mean()),
        )
        scores.append(row)
        print(f"{name:28}", *(f"{value:.3f}" for value in row), settings, flush=True)
    print(f"{'mean':28}", *(f"{value:.3f}" for value in np.mean(scores, axis=0)))


def choose(files: Sequence[Replies], own: Own) -> Settings:
    """The settings that do best on our own wordings among those within `TOLERANCE` of the best on the files.

    Each file validates a fit to the others. Each half of our own wordings validates a fit to the other half
    and all files: what such a fit says of them shows what it makes of voices that it does not know.
    """
    folds = [
        *(Fold(file, [other for other in files if other is not file], own.all) for file in files),
        *(Fold(own.halves[k], list(files), [own.halves[1 - k], own.simulated]) for k in range(2)),
    ]
    found = [_validated(folds, len(files), settings) for settings in GRID]
    best = max(on_files for on_files, _, _ in found)
    near = [one for one in found if one[0] >= best - TOLERANCE]
    return max(near, key=lambda one: one[1])[2]


def _validated(folds: Sequence[Fold], files: int, settings: Settings) -> tuple[float, float, Settings]:
    """Mean F1 on the files, and on our own; the settings with the margin that `UNSURE` sets on the files."""
    models = [fit(fold.files, fold.own, settings) for fold in folds]
    odds = [odds_of(model, fold.test) for model, fold in zip(models, folds, strict=True)]
    distances = [
        np.inf if reading.is_sure else abs(one.log_odds)
        for some, fold in zip(odds[:files], folds, strict=False)
        for one, reading in zip(some, fold.test.readings, strict=True)
    ]
    settings = with_margin(settings, float(np.quantile(distances, UNSURE)))
    scores = [
        f1(fold.test.refused, verdicts(replace(model, margin=settings.margin), fold.test, some))
        for model, some, fold in zip(models, odds, folds, strict=True)
    ]
    return float(np.mean(scores[:files])), float(np.mean(scores[files:])), settings


def f1(truth: Array, said: Array) -> float:
    """F1 of a refusal, full or partial; 0 where nothing is one."""
    named = int(truth.sum() + said.sum())
    return 2 * int((truth & said).sum()) / named if named else 0.0


def _labelled(path: Path, encoder: Encoder) -> Replies:
    samples = read_samples(path)
    return read_replies(
        [sample.completion for sample in samples],
        [sample.human != "answered" for sample in samples],
        encoder,
        LENGTHS,
    )


def _simulated(encoder: Encoder) -> Replies:
    """What the shipped persona says of the bundled queries, as many replies of each label."""
    target = load_persona(None).target
    queries = [query.text for query in load_queries(None)]
    texts, refused = [], []
    for label, number in product(LABELS, range(PERSONA_REPLIES)):
        query = queries[number % len(queries)]
        digest = digest_of(label, number)
        form = target.grammar.features(query).form
        texts.append(target.wordings[label].compose(digest, form, target.slots(query, digest)))
        refused.append(label != "answered")
    return read_replies(texts, refused, encoder, LENGTHS)


if __name__ == "__main__":
    main()
