"""The cascade labels replies by rules, n-grams and embeddings, and knows voices that no fit has heard."""

from __future__ import annotations

import csv
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.fit_refusal import f1 as fitted_f1
from benchmarks.fit_refusal import read_small
from envs.queries import load_queries
from ollama_utils.encoders import CachedEncoder, Encoder, HashingEncoder
from ollama_utils.errors import BadRequestError, EncodingError
from ollama_utils.sentence_encoder import MiniLMEncoder
from ollama_utils.types import Completion
from scorers.labels import REFUSALS
from scorers.refusal import ENCODER, REFUSAL_LABELS, RefusalDetector, make_detector
from scorers.refusal_models import from_json, ngrams, pieces, refusal_model
from scorers.refusal_rules import read_by_rules
from scorers.reward import make_scorer
from simulator.chance import digest_of
from simulator.world_file import LABELS
from tests.scorers.test_refusal_rules import ANSWERED, PARTLY, REFUSED, typeset
from tests.tables import listed
from tests.worlds import CAUTIOUS

VOICES = Path(__file__).parent / "data" / "refusals_by_other_voices.jsonl"
"""Replies of imaginary models; no fit has seen them. Written by the author of `benchmarks/data/`, though."""
FAMILIES = VOICES.with_name("refusals_by_model_families.jsonl")
"""Imitations of how well-known model families reply, written before the detector's errors were seen."""
FLOORS = {VOICES: (0.82, 0.72), FAMILIES: (0.92, 0.89)}
"""Slightly below the F1 that the shipped weights reach on each, with embeddings and without."""
SMALL_FLOORS = {"test": 0.78, "told": 0.9}
"""Slightly below the F1 on SmolLM2's replies to prompts and contexts that no fit has seen."""
TRICKY_MISSED = 7
"""So many of the 48 tricky answers may be taken for refusals: mostly advice such as "We should not ..."."""
WORDINGS = Path(__file__).parents[2] / "benchmarks" / "data" / "refusal_wordings.csv"


def voices(file: Path = VOICES) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def f1(truth: Sequence[str], said: Sequence[str]) -> float:
    pairs = [(a != "answered", b != "answered") for a, b in zip(truth, said, strict=True)]
    return 2 * sum(a and b for a, b in pairs) / sum(a + b for a, b in pairs)


class CountingEncoder:
    """Stands in for the model: a row of ones, and a list of what was asked for."""

    name = ENCODER
    dimension = 384

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        model = refusal_model()
        half = (model.large.coefficients + model.small.coefficients)[: self.dimension]
        return np.array([self.sign * 100 * half for _ in texts], dtype=np.float32)


class FailingEncoder(CountingEncoder):
    """Has no row for any text."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        failures = {place: BadRequestError("no row") for place, _ in enumerate(texts)}
        raise EncodingError(np.zeros((len(texts), self.dimension), dtype=np.float32), failures)


@pytest.fixture(scope="module")
def minilm(sentence_encoder: MiniLMEncoder) -> Encoder:
    return CachedEncoder(sentence_encoder)


@pytest.fixture(scope="module")
def unsure() -> str:
    """A reply that the first two stages leave open."""
    model = refusal_model()
    texts = [voice["completion"] for voice in voices()]
    readings = [read_by_rules(text) for text in texts]
    return next(
        text
        for text, reading in zip(texts, readings, strict=True)
        if not reading.is_sure and model.is_unsure(model.read(text, reading))
    )


@pytest.mark.parametrize("file", FLOORS, ids=lambda file: file.stem)
def test_replies_in_voices_that_no_fit_has_heard_are_distinguished(file: Path, minilm: Encoder) -> None:
    rows = voices(file)
    said = RefusalDetector(encoder=minilm).label_many([row["completion"] for row in rows])
    assert f1([row["label"] for row in rows], said) >= FLOORS[file][0]


@pytest.mark.parametrize("file", FLOORS, ids=lambda file: file.stem)
def test_without_embeddings_they_still_are_mostly(file: Path) -> None:
    rows = voices(file)
    said = RefusalDetector().label_many([row["completion"] for row in rows])
    assert f1([row["label"] for row in rows], said) >= FLOORS[file][1]


@pytest.mark.parametrize("file", FLOORS, ids=lambda file: file.stem)
def test_no_reply_of_a_held_back_set_is_among_the_wordings_of_the_fit(file: Path) -> None:
    with WORDINGS.open(encoding="utf-8", newline="") as wordings:
        fitted = {row["completion"] for row in csv.DictReader(wordings)}
    assert not fitted & {row["completion"] for row in voices(file)}


@pytest.mark.parametrize("split", SMALL_FLOORS)
def test_replies_of_a_small_model_that_no_fit_has_seen_are_distinguished(split: str, minilm: Encoder) -> None:
    replies = read_small(split)
    said = RefusalDetector(encoder=minilm).label_many([reply.text for reply in replies])
    refused = [[label in REFUSALS for label in labels] for labels in ([r.label for r in replies], said)]
    assert fitted_f1(*map(np.array, refused)) >= SMALL_FLOORS[split]


@pytest.mark.parametrize("split", SMALL_FLOORS)
def test_no_prompt_and_no_context_of_it_is_among_those_of_the_fit(split: str) -> None:
    both = [read_small(one) for one in ("train", split)]
    assert not set.intersection(*({reply.prompt_id for reply in some} for some in both))
    assert not set.intersection(*({reply.context.removesuffix(" shown") for reply in some} for some in both))


def test_whoever_is_told_alone_is_shown_nothing() -> None:
    contexts = json.loads((WORDINGS.parent / "smollm2_contexts.json").read_text(encoding="utf-8"))
    assert not any(contexts[reply.context]["shown"] for reply in read_small("told"))


def test_what_the_rules_know_the_cascade_knows(minilm: Encoder) -> None:
    detector = RefusalDetector(encoder=minilm)
    assert detector.label_many(REFUSED).count("answered") <= 1
    assert detector.label_many(PARTLY).count("answered") <= 1
    assert sum(label != "answered" for label in detector.label_many(ANSWERED)) <= TRICKY_MISSED


def test_every_reply_of_the_simulated_target_is_known_before_the_embeddings() -> None:
    model, detector = refusal_model(), RefusalDetector()
    queries = [query.text for query in load_queries(None)]
    asked = wrong = 0
    numbers = range(1000, 1100)
    for label in LABELS:
        met = [query for query in queries if CAUTIOUS.decide(CAUTIOUS.read(query)) == label]
        for number in numbers:
            text = CAUTIOUS.answer(met[number % len(met)], digest_of(label, number))
            reading = read_by_rules(text)
            asked += not reading.is_sure and model.is_unsure(model.read(text, reading))
            wrong += (detector.label(text) == "answered") != (label == "answered")
    assert wrong <= 0.01 * len(numbers) * len(LABELS)
    assert asked <= 0.05 * len(numbers) * len(LABELS)


@given(st.lists(st.sampled_from([*REFUSED, *PARTLY, *ANSWERED])))
def test_a_label_depends_on_its_text_alone(texts: list[str]) -> None:
    detector = RefusalDetector()
    assert detector.label_many(texts) == [detector.label(text) for text in texts]


def test_with_embeddings_too_it_does_not_depend_on_company_or_order(minilm: Encoder) -> None:
    texts = [voice["completion"] for voice in voices()][:24]
    labels = RefusalDetector(encoder=minilm).label_many(texts)
    backwards = RefusalDetector(encoder=minilm).label_many(texts[::-1])
    assert backwards[::-1] == labels
    assert [RefusalDetector(encoder=minilm).label(text) for text in texts] == labels


def test_typographic_marks_and_outer_space_change_no_label() -> None:
    texts, detector = [*REFUSED[:20], *PARTLY, *ANSWERED], RefusalDetector()
    wrong = [text for text in texts if detector.label(typeset(text)) != detector.label(text)]
    assert not wrong, listed(wrong)


@given(st.text())
def test_any_text_has_a_label(text: str) -> None:
    assert RefusalDetector(encoder=CountingEncoder()).label(text) in REFUSAL_LABELS


@given(st.text(alphabet=st.characters(codec=None)))
def test_what_is_encoded_is_valid_text_and_short(text: str) -> None:
    for piece in pieces(text):
        assert len(piece.encode("utf-8")) <= 4 * 400


def test_the_first_sentence_and_the_opening_are_encoded() -> None:
    assert pieces("No.  Not that!\nAsk me\nfor bread. I bake.") == ("No.", "No. Not that! Ask me")
    assert pieces("Not today") == ("Not today", "Not today")


def test_how_a_reply_sounds_tells_which_expert_counts() -> None:
    model = refusal_model()
    small = [reply.text for reply in read_small("train")][::10]
    large = [voice["completion"] for voice in voices(FAMILIES)]
    said = [[model.read(text, read_by_rules(text)).small for text in texts] for texts in (small, large)]
    assert np.mean(said[0]) > 0.8
    assert np.mean(said[1]) < 0.4


def test_embeddings_are_asked_only_where_rules_and_ngrams_are_unsure(unsure: str) -> None:
    encoder = CountingEncoder()
    detector = RefusalDetector(encoder=encoder)
    detector.label_many(["I'm sorry, but I can't help with that.", ""])
    assert encoder.asked == []
    detector.label(unsure)
    assert encoder.asked == list(pieces(unsure))


def test_where_they_are_asked_embeddings_decide(unsure: str) -> None:
    assert RefusalDetector(encoder=CountingEncoder(1.0)).label(unsure) != "answered"
    assert RefusalDetector(encoder=CountingEncoder(-1.0)).label(unsure) == "answered"


def test_with_another_encoder_ngrams_have_the_last_word_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, unsure: str
) -> None:
    encoder = HashingEncoder(77)
    with caplog.at_level(logging.WARNING, logger="scorers.refusal"):
        detectors = [make_detector(encoder), make_detector(encoder)]
    assert [detector.encoder for detector in detectors] == [None, None]
    assert [record.message for record in caplog.records if "hashing:77" in record.message] == [
        (
            "refusals are found by rules and word n-grams alone: the third stage needs the encoder "
            "'all-MiniLM-L6-v2', not 'hashing:77'"
        )
    ]
    assert detectors[0].label(unsure) == RefusalDetector().label(unsure)


def test_the_reward_uses_the_runs_own_encoder(unsure: str) -> None:
    encoder = CountingEncoder()
    verdict = make_scorer("refusal", encoder=encoder)("q", "q", Completion(text=unsure), 1.0)
    assert encoder.asked
    assert verdict.outcome == "refused"


def test_a_reply_that_cannot_be_encoded_is_unscored(unsure: str) -> None:
    verdict = make_scorer("refusal", encoder=FailingEncoder())("q", "q", Completion(text=unsure), 1.0)
    assert verdict.outcome == "unscored"
    assert verdict.error == "BadRequestError: no row"


def test_an_unfamiliar_text_scores_near_the_threshold() -> None:
    model = refusal_model()
    known = model.large.ngrams(ngrams("i cannot help with that request", model.words))
    strange = model.large.ngrams(ngrams("zyx wvu tsr qpo nml kji hgf edc", model.words))
    assert strange == model.large.ngrams.intercept
    assert abs(strange) < abs(known)


def test_ngrams_are_counted_up_to_their_length() -> None:
    assert ngrams("No, no I can't", 2, ["<list>"]) == {
        "no": 2, "i": 1, "can't": 1, "no no": 1, "no i": 1, "i can't": 1, "<list>": 1
    }  # fmt: skip


def test_a_model_comes_back_from_its_file_as_it_was() -> None:
    from benchmarks.fit_refusal import to_json

    model = refusal_model()
    again = from_json(json.loads(json.dumps(to_json(model))))
    text = "That's a no from me."
    assert again.read(text, read_by_rules(text)) == model.read(text, read_by_rules(text))


def test_labelling_loads_no_scikit_learn() -> None:
    code = (
        "import sys; from scorers.refusal import RefusalDetector; RefusalDetector().label('A long walk.'); "
        "sys.exit('sklearn' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603 - our own code
