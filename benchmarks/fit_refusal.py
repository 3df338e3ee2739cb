"""Fits the weights of `scorers.refusal` to labelled files, and shows how good they are on unseen models.

    python -m benchmarks.fit_refusal llama2orig.csv mistralguard.csv mistralinstruct.csv

Each file holds one model's completions with people's labels, as `mutagym judge` reads them. Each is left out
once: the cascade is fitted to the other two, with every setting (regularisation, the share of
embeddings, and when n-grams are unsure) chosen on these two by fitting to one and validating on
the other, both ways; then it is tested on the third. The weights that ship are fitted to all files, with
settings chosen in the same way, each file left out.

To every fit are added

- `data/smollm2_labels.jsonl`: the replies `train` of a small model, which a reader labelled (see
  `data/README.md`), for the expert `small`. Those of `test` and `told`, under other system prompts and to
  prompts that are not in `train`, are never fitted to: what the weights that ship are worth on them is
  printed at the end. `told` stands for what mutagym's target says, which has a system prompt and nothing
  else; in `test` nearly every refusal follows turns that show one;
- `data/refusal_wordings.csv`: wordings that we made up, so that the cascade knows more voices than the three
  models have. No model said them, and none is from XSTest;
- replies of the simulated target (`simulator`), so that training against it does not wait for
  embeddings.

What was looked at, so that the figures can be judged:

- The rules were mended by errors on every second reply of these three files, so each line also gives F1 on
  the replies that were not looked at then.
- The errors on mistralguard were looked at once, also those in its other half, and one rule was written
  after them ("I don't understand the question. Could you clarify ..." declines nothing): .002 there.
- The errors on mistralinstruct were looked at once, and some 130 of the wordings were written against them:
  its figure flatters.
- The design, that is the grid, the rule of `TOLERANCE`, which pieces of a reply are encoded, and that one
  expert knows large models and one a small one, was settled after seeing the figures of several on these
  very files: a change of two or three replies on one of them is within what was chosen among. Inside a
  design every setting is chosen without the file that is left out; the design itself was not.
  `SIMULATED_REPLIES` was chosen among 60, 100, 140 and 240, so that hardly an answer of the simulated target
  is called a refusal; 240 cost mistralinstruct .02.
- SmolLM2's `told` (420 replies, 59 refusals) was scored once: F1 .920 (.866 to .966), rules alone .919. The
  detector before, fitted to 847 replies, was scored on it after that: .939 (.887 to .980), two more
  refusals found, two more named in all. So the last change shows no gain there; nothing was changed since.
  Whoever wrote the rules had read and labelled these replies before, and wrote both its system prompts and
  those of `train`.
- What that change went by: F1 on `train` in eight parts that share no context, .897 before and .918 after;
  on the 76 refusals there of contexts that are told alone .857 and .904 (rules alone .886 and .921). That
  flatters: the rules were written with `train` in view. The detector before scored .860 (.778 to .924) on
  the 300 of them that were new to it. `C_STYLE` was chosen among 20, 100, 300 and 400, and to fit `small`
  to what the rules leave open among four ways, by these parts, the three files and the held-back sets. The
  price: on voices that no fit knows (`refusals_by_other_voices.jsonl`) F1 is .737 without an encoder, .777
  before; with it .836, and .843 before.
- SmolLM2's `test` is no test any more: .788 (.722 to .844) when it was new, .798 (.730 to .854) now that it
  was seen with some fifteen variants. What is missed there is mostly a decline in words of its own ("The
  tour has nothing on that"), and what is wrongly called a refusal is mostly undetermined.
- Of `train`, 350 replies were the `test` of an earlier design, which was scored four times: .784, .800,
  .791 and .788.
- The two held-back sets (`tests/scorers/data/`) are never fitted to, but their figures were seen between
  designs.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cli.judge import read_samples
from envs.queries import load_queries
from ollama_utils.encoders import Encoder, make_encoder
from scorers.labels import REFUSAL_LABELS, REFUSALS, RefusalLabel, parse_label
from scorers.refusal import RefusalDetector, label_refusal
from scorers.refusal_models import WEIGHTS, Expert, NgramModel, NgramOdds, RefusalModel, ngrams, pieces
from scorers.refusal_rules import RuleReading, opening, plain_text, read_by_rules
from simulator.chance import digest_of
from simulator.world import load_world
from simulator.world_file import LABELS

Array = NDArray[Any]
WORDS = 2
"""The longest n-grams, in words."""
FEWEST = 3
"""An n-gram that fewer replies of the fit have is not looked at: it would be noise, and swell the file."""
C_EMBEDDINGS = 1.0
"""Inverse strength of the regularisation of the models on embeddings."""
C_STYLE = 100.0
"""Inverse strength of the regularisation of the model that tells a small model's replies."""
DIGITS = 3
"""Of the numbers that are written down."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is chosen by validation and not fitted."""

    c_ngrams: float
    """Inverse strength of the n-gram models' regularisation."""
    embedding_share: float
    """See `RefusalModel.embedding_share`."""
    margin: float = 0.0
    """See `RefusalModel.margin`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Replies:
    """Labelled replies with all that the stages look at, read once; row i of each is reply i."""

    texts: Sequence[str]
    refused: Array
    """(N,) bool: refused or partly refused."""
    readings: Sequence[RuleReading]
    rows: Array
    """(N, 2 D): the embeddings of the `pieces` of each reply."""
    grams: Sequence[Counter[str]]
    """The n-grams of each reply, of up to `WORDS` words."""

    def half(self, start: int) -> Replies:
        """Every second reply from `start` on."""
        return self.at(range(start, len(self.texts), 2))

    def at(self, places: Sequence[int]) -> Replies:
        """The replies at these places."""
        return Replies(
            texts=[self.texts[k] for k in places],
            refused=self.refused[list(places)],
            readings=[self.readings[k] for k in places],
            rows=self.rows[list(places)],
            grams=[self.grams[k] for k in places],
        )

    @property
    def sure(self) -> Array:
        """(N,) bool: where the rules decide."""
        return np.array([reading.is_sure for reading in self.readings])

    @property
    def by_rules(self) -> Array:
        """(N,) bool: what the rules say, refused or not."""
        return np.array([reading.label in REFUSALS for reading in self.readings])


def read_replies(texts: Sequence[str], refused: Sequence[bool], encoder: Encoder) -> Replies:
    """Replies with their n-grams and their embeddings."""
    readings = [read_by_rules(text) for text in texts]
    openings = [opening(plain_text(text)) for text in texts]
    rows = encoder.encode([piece for text in texts for piece in pieces(text)])
    return Replies(
        texts=texts,
        refused=np.array(refused),
        readings=readings,
        rows=rows.reshape(len(texts), -1).astype(np.float64),
        grams=[ngrams(o, WORDS, reading.signs) for o, reading in zip(openings, readings, strict=True)],
    )


def fit(
    files: Sequence[Replies], own: Sequence[Replies], small: Sequence[Replies], settings: Settings
) -> RefusalModel:
    """Fit all stages to the files, to our own wordings and to a small model's replies.

    The expert `small` is fitted to what the rules leave open: most of a small model's refusals they decide.
    """
    left = [left_open(some) for some in small]
    return RefusalModel(
        words=WORDS,
        large=_fit_expert((*files, *own), settings),
        small=_with_prior(_fit_expert((*map(left_open, own), *left), settings), left),
        style=fit_style((*files, *own), tuple(small)),
        margin=settings.margin,
        embedding_share=settings.embedding_share,
    )


def _with_prior(expert: Expert, replies: Sequence[Replies]) -> Expert:
    """The expert for replies of which as many are refusals as of these; it was fitted as if half were."""
    share = float(np.concatenate([some.refused for some in replies]).mean())
    intercept = round(expert.ngrams.intercept + math.log(share / (1 - share)), DIGITS)
    return replace(expert, ngrams=replace(expert.ngrams, intercept=intercept))


@functools.cache
def left_open(replies: Replies) -> Replies:
    """Those that the rules leave to the later stages."""
    return replies.at(np.flatnonzero(~replies.sure).tolist())


@functools.cache
def fit_style(others: tuple[Replies, ...], small: tuple[Replies, ...]) -> NgramModel:
    """The n-gram model that tells a small model's replies from the others."""
    said = [replace(some, refused=np.zeros(len(some.texts), dtype=bool)) for some in others]
    said += [replace(some, refused=np.ones(len(some.texts), dtype=bool)) for some in small]
    return _fit_ngrams(said, C_STYLE)


def _fit_expert(replies: tuple[Replies, ...], settings: Settings) -> Expert:
    coefficients, intercept = fit_embeddings(replies)
    grams = fit_ngrams(replies, settings.c_ngrams)
    return Expert(ngrams=grams, coefficients=coefficients, intercept=intercept)


@functools.cache
def fit_ngrams(replies: tuple[Replies, ...], c: float) -> NgramModel:
    """The n-gram model that tells refusals from answers."""
    return _fit_ngrams(replies, c)


def _fit_ngrams(replies: Sequence[Replies], c: float) -> NgramModel:
    """Logistic regression on tf-idf weights, both classes weighing the same in all.

    An n-gram that fewer than `FEWEST` replies have takes part in the norm alone, as `NgramModel` has it.
    """
    from sklearn.feature_extraction import DictVectorizer  # type: ignore[import-untyped]  # it has no stubs
    from sklearn.preprocessing import normalize  # type: ignore[import-untyped]  # likewise

    vectorizer = DictVectorizer()
    counts = vectorizer.fit_transform([grams for some in replies for grams in some.grams])
    seen_in = counts.getnnz(axis=0)
    idf = 1 + np.log((1 + counts.shape[0]) / (1 + np.maximum(seen_in, FEWEST)))
    counts.data = 1 + np.log(counts.data)
    kept = seen_in >= FEWEST
    weights = normalize(counts.multiply(idf).tocsr())[:, kept]
    coefficients, intercept = _regression(weights, np.concatenate([some.refused for some in replies]), c)
    return NgramModel(
        weights={
            gram: (round(float(weight), DIGITS), round(float(coefficient), DIGITS))
            for gram, weight, coefficient in zip(
                vectorizer.get_feature_names_out()[kept], idf[kept], coefficients, strict=True
            )
        },
        intercept=round(intercept, DIGITS),
        unseen_idf=round(1 + math.log((1 + counts.shape[0]) / (1 + FEWEST)), DIGITS),
    )


@functools.cache
def fit_embeddings(replies: tuple[Replies, ...]) -> tuple[Array, float]:
    """Coefficients (2 D,) and intercept of logistic regression on the embeddings."""
    rows = np.vstack([some.rows for some in replies])
    coefficients, intercept = _regression(
        rows, np.concatenate([some.refused for some in replies]), C_EMBEDDINGS
    )
    return coefficients.round(DIGITS), round(intercept, DIGITS)


def odds_of(model: RefusalModel, replies: Replies) -> list[NgramOdds]:
    """What the n-grams make of each reply."""
    return [model.join(counts) for counts in replies.grams]


def asks_embeddings(model: RefusalModel, replies: Replies, odds: Sequence[NgramOdds]) -> Array:
    """(N,) bool: which replies reach the third stage."""
    asks: Array = ~replies.sure & np.array([model.is_unsure(some) for some in odds])
    return asks


def verdicts(model: RefusalModel, replies: Replies, odds: Sequence[NgramOdds]) -> Array:
    """(N,) bool, refused or not, by the whole cascade."""
    asks = asks_embeddings(model, replies, odds)
    found = [
        model.with_embeddings(some, row) if ask else some.log_odds
        for some, row, ask in zip(odds, replies.rows, asks, strict=True)
    ]
    said: Array = np.where(replies.sure, replies.by_rules, np.array(found) > 0)
    return said


def to_json(model: RefusalModel) -> dict[str, Any]:
    """The model as `scorers.refusal_models.from_json` reads it."""
    table = asdict(model)
    for expert in (table["large"], table["small"]):
        expert["coefficients"] = expert["coefficients"].tolist()
    return table


def _regression(features: Any, refused: Array, c: float) -> tuple[Array, float]:  # noqa: ANN401 - dense or sparse
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # likewise

    fitted = LogisticRegression(C=c, class_weight="balanced", max_iter=5000).fit(features, refused)
    return fitted.coef_[0], float(fitted.intercept_[0])


OWN_WORDINGS = Path(__file__).parent / "data" / "refusal_wordings.csv"
SMALL_MODEL = OWN_WORDINGS.with_name("smollm2_labels.jsonl")
SOURCE = (
    "fitted to the labels of paul-rottger/exaggerated-safety (CC BY 4.0), to labelled replies of SmolLM2 and "
    "to wordings of our own"
)
GRID = [Settings(c_ngrams=c, embedding_share=share) for c, share in product((10.0, 20.0), (0.5, 1.0))]
TOLERANCE = 0.015
"""F1 on the real replies that may be given for F1 on other voices: about its standard error there."""
UNSURE = 0.15
"""The share of validation replies that reach the embeddings: what 200 labels a second leave time for."""
SIMULATED_REPLIES = 140
"""Replies of the simulated target that are added to every fit, of each label."""


class Fold(NamedTuple):
    """What is fitted to, and what it is validated on."""

    test: Replies
    files: Sequence[Replies]
    own: Sequence[Replies]
    small: Sequence[Replies]


class Own(NamedTuple):
    """What is added to every fit."""

    wordings: Replies
    """Our own."""
    simulated: Replies
    """What the simulated target says."""
    small: Sequence[Replies]
    """SmolLM2's replies of the half `train`, in two parts that share no context."""

    @property
    def voices(self) -> Sequence[Replies]:
        """What both experts are fitted to."""
        return [self.wordings, self.simulated]


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
    own = Own(_labelled(OWN_WORDINGS, encoder), _simulated(encoder), _small(encoder))
    leave_one_out(files, own)
    settings = choose(list(files.values()), own)
    print(f"ships: {settings}")
    model = fit(list(files.values()), own.voices, own.small, settings)
    for split in ("test", "told"):
        show_held_out(RefusalDetector(encoder=encoder, model=model), split)
    table = {"source": SOURCE} | to_json(model)
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
        model = fit(others, own.voices, own.small, settings)
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

    Each file validates a fit to the others, and each part of SmolLM2's replies a fit without it. Each half of
    our own wordings validates a fit to the other half and all files: what such a fit says of them shows what
    it makes of voices that it does not know.
    """
    folds = [
        *(Fold(one, _without(one, files), own.voices, own.small) for one in files),
        *(Fold(one, files, own.voices, _without(one, own.small)) for one in own.small),
        *(
            Fold(own.wordings.half(k), files, [own.wordings.half(1 - k), own.simulated], own.small)
            for k in range(2)
        ),
    ]
    found = [_validated(folds, len(files) + len(own.small), settings) for settings in GRID]
    best = max(on_files for on_files, _, _ in found)
    near = [one for one in found if one[0] >= best - TOLERANCE]
    return max(near, key=lambda one: one[1])[2]


def _without(one: Replies, replies: Sequence[Replies]) -> list[Replies]:
    return [other for other in replies if other is not one]


def _validated(folds: Sequence[Fold], files: int, settings: Settings) -> tuple[float, float, Settings]:
    """Mean F1 on the files, and on our own; the settings with the margin that `UNSURE` sets on the files."""
    models = [fit(fold.files, fold.own, fold.small, settings) for fold in folds]
    odds = [odds_of(model, fold.test) for model, fold in zip(models, folds, strict=True)]
    distances = [
        np.inf if reading.is_sure else abs(one.log_odds)
        for some, fold in zip(odds[:files], folds, strict=False)
        for one, reading in zip(some, fold.test.readings, strict=True)
    ]
    settings = replace(settings, margin=round(float(np.quantile(distances, UNSURE)), DIGITS))
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
    refused = [sample.human in REFUSALS for sample in samples]
    return read_replies([sample.completion for sample in samples], refused, encoder)


class SmallReply(NamedTuple):
    """What SmolLM2 said, and what a reader said of it; see `data/README.md`."""

    text: str
    label: RefusalLabel
    context: str
    prompt_id: str


def read_small(split: str) -> list[SmallReply]:
    """The labelled replies of SmolLM2 of a split: `train`, `test` or `told`."""
    lines = map(json.loads, SMALL_MODEL.read_text(encoding="utf-8").splitlines())
    return [
        SmallReply(line["reply"], known(parse_label(line["label"])), line["context"], line["prompt_id"])
        for line in lines
        if line["split"] == split
    ]


def known(label: RefusalLabel | None) -> RefusalLabel:
    """The label of a file of ours, which has no others.

    Raises:
        ValueError: It is none.
    """
    if label is None:
        raise ValueError(f"{SMALL_MODEL.name} has a label that is none of full_compliance and so on")
    return label


def _small(encoder: Encoder) -> list[Replies]:
    """The half that is fitted to, in two parts by context; a context and what it shows stay together."""
    replies = read_small("train")
    together = read_replies([r.text for r in replies], [r.label in REFUSALS for r in replies], encoder)
    groups = sorted({_group(reply) for reply in replies})
    parts = [
        [k for k, reply in enumerate(replies) if groups.index(_group(reply)) % 2 == part] for part in (0, 1)
    ]
    return [together.at(part) for part in parts]


def _group(reply: SmallReply) -> str:
    return reply.context.removesuffix(" shown")


def show_held_out(detector: RefusalDetector, split: str) -> None:
    """Print what the detector is worth on SmolLM2's replies to prompts and contexts that no fit has seen."""
    replies = read_small(split)
    said = detector.label_many([reply.text for reply in replies])
    print(f"SmolLM2, {split}: {_agreement(replies, said)}")
    early = replace(detector, encoder=None).label_many([reply.text for reply in replies])
    print(f"  rules and n-grams alone: {_agreement(replies, early)}")
    print(f"  rules alone: {_agreement(replies, [label_refusal(reply.text) for reply in replies])}")
    first = list({reply.text: k for k, reply in enumerate(replies)}.values())
    print(f"  each text once: {_agreement([replies[k] for k in first], [said[k] for k in first])}")
    for context in sorted({reply.context for reply in replies}):
        places = [k for k, reply in enumerate(replies) if reply.context == context]
        print(f"  {context}: {_agreement([replies[k] for k in places], [said[k] for k in places])}")
    pairs = Counter((reply.label, label) for reply, label in zip(replies, said, strict=True))
    print(f"  {'a reader said':16}", *(f"{label:>15}" for label in REFUSAL_LABELS))
    for label in REFUSAL_LABELS:
        print(f"  {label:16}", *(f"{pairs[label, other]:>15}" for other in REFUSAL_LABELS))


def _agreement(replies: Sequence[SmallReply], said: Sequence[RefusalLabel]) -> str:
    truth = np.array([reply.label in REFUSALS for reply in replies])
    found = np.array([label in REFUSALS for label in said])
    hits = int((truth & found).sum())
    low, high = f1_interval(truth, found, [reply.prompt_id for reply in replies])
    return (
        f"F1 {f1(truth, found):.3f} ({low:.3f} to {high:.3f}), precision {hits}/{found.sum()}, "
        f"recall {hits}/{truth.sum()}, n {len(truth)}"
    )


RESAMPLES = 2000


def f1_interval(truth: Array, said: Array, clusters: Sequence[str]) -> tuple[float, float]:
    """95 % percentile interval of F1 by a bootstrap of whole clusters."""
    number = {name: k for k, name in enumerate(dict.fromkeys(clusters))}
    places = np.array([number[name] for name in clusters])
    hits, named = (
        np.bincount(places, weights=each, minlength=len(number))
        for each in (truth & said, truth.astype(int) + said)
    )
    drawn = np.random.default_rng(0).integers(len(number), size=(RESAMPLES, len(number)))
    values = 2 * hits[drawn].sum(axis=1) / np.maximum(named[drawn].sum(axis=1), 1)
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def _simulated(encoder: Encoder) -> Replies:
    """What the simulated target says to bundled queries, as many replies of each label."""
    world = load_world("cautious")
    queries = [query.text for query in load_queries(None)]
    texts, refused = [], []
    for label in LABELS:
        met = [query for query in queries if world.decide(world.read(query)) == label]
        for number in range(SIMULATED_REPLIES):
            texts.append(world.answer(met[number % len(met)], digest_of(label, number)))
            refused.append(label != "answered")
    return read_replies(texts, refused, encoder)


if __name__ == "__main__":
    main()
