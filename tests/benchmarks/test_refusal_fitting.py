"""The weights of the refusal detector are fitted as their docstrings say."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.fit_refusal import (
    FEWEST,
    Replies,
    Settings,
    f1,
    f1_interval,
    fit,
    odds_of,
    read_replies,
    to_json,
    verdicts,
)
from ollama_utils.encoders import HashingEncoder
from scorers.refusal_models import from_json

TEXTS = [
    "the door stays shut today",
    "a walk in the park is free",
    "the park stays shut",
    "a free walk today",
] * 4
REFUSED = [True, False, True, False] * 4
SETTINGS = Settings(c_ngrams=10.0, c_embeddings=1.0, gate=0.4, embedding_share=1.0, margin=0.5)


@pytest.fixture(scope="module")
def replies() -> Replies:
    return read_replies(TEXTS, REFUSED, HashingEncoder(64))


def test_ngrams_weigh_as_scikit_learns_own_vectorizer_weighs_them(replies: Replies) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

    model = fit([replies], [], SETTINGS).familiar.ngrams
    vectorizer = TfidfVectorizer(
        token_pattern=r"[a-z']+",  # noqa: S106 - a pattern of words
        ngram_range=(1, 2),
        min_df=FEWEST,
        sublinear_tf=True,
    ).fit(TEXTS)
    coefficients = [model.weights[gram][1] for gram in vectorizer.get_feature_names_out()]
    expected = vectorizer.transform(TEXTS) @ np.array(coefficients) + model.intercept
    found = [model(counts).log_odds for counts in replies.grams]
    assert np.allclose(found, expected, atol=1e-2)  # the weights are rounded
    assert [model(counts).known for counts in replies.grams] == pytest.approx([1.0] * len(TEXTS))


def test_what_was_fitted_tells_its_own_replies_apart_and_survives_its_file(replies: Replies) -> None:
    model = fit([replies], [], SETTINGS)
    again = from_json(json.loads(json.dumps(to_json(model))))
    odds = odds_of(again, replies)
    assert odds == odds_of(model, replies)
    assert (verdicts(again, replies, odds) == replies.refused).all()


def test_both_halves_together_are_the_whole(replies: Replies) -> None:
    halves = [replies.half(k) for k in range(2)]
    assert sorted([*halves[0].texts, *halves[1].texts]) == sorted(TEXTS)
    assert sum(len(half.rows) for half in halves) == len(TEXTS)


def test_the_interval_of_f1_holds_it_and_widens_where_replies_to_one_prompt_are_alike() -> None:
    chance = np.random.default_rng(1)
    truth = np.repeat(chance.random(60) < 0.5, 5)
    said = truth ^ np.repeat(chance.random(60) < 0.2, 5)
    apart, together = (
        f1_interval(truth, said, names)
        for names in ([str(k) for k in range(300)], [str(k // 5) for k in range(300)])
    )
    for low, high in (apart, together):
        assert low <= f1(truth, said) <= high
    assert together[1] - together[0] > 1.5 * (apart[1] - apart[0])
