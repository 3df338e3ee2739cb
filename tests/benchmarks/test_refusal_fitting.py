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
    fit_ngrams,
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
RAMBLING = [
    "oh the shop is closed oh oh",
    "oh soup oh soup and soup",
    "oh bread is soup oh oh",
    "oh yes oh bread and soup",
] * 4
RAMBLING_REFUSED = [True, False, False, False] * 4
SETTINGS = Settings(c_ngrams=10.0, embedding_share=1.0, margin=0.5)


@pytest.fixture(scope="module")
def replies() -> Replies:
    return read_replies(TEXTS, REFUSED, HashingEncoder(64))


@pytest.fixture(scope="module")
def rambling() -> Replies:
    return read_replies(RAMBLING, RAMBLING_REFUSED, HashingEncoder(64))


def test_ngrams_weigh_as_scikit_learns_own_vectorizer_weighs_them(
    replies: Replies, rambling: Replies
) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

    model = fit([replies], [], [rambling], SETTINGS).large.ngrams
    vectorizer = TfidfVectorizer(
        token_pattern=r"[a-z']+",  # noqa: S106 - a pattern of words
        ngram_range=(1, 2),
        min_df=FEWEST,
        sublinear_tf=True,
    ).fit(TEXTS)
    coefficients = [model.weights[gram][1] for gram in vectorizer.get_feature_names_out()]
    expected = vectorizer.transform(TEXTS) @ np.array(coefficients) + model.intercept
    found = [model(counts) for counts in replies.grams]
    assert np.allclose(found, expected, atol=1e-2)  # the weights are rounded


def test_what_was_fitted_tells_its_own_replies_apart_and_survives_its_file(
    replies: Replies, rambling: Replies
) -> None:
    model = fit([replies], [], [rambling], SETTINGS)
    again = from_json(json.loads(json.dumps(to_json(model))))
    for some in (replies, rambling):
        odds = odds_of(again, some)
        assert odds == odds_of(model, some)
        assert (verdicts(again, some, odds) == some.refused).all()


def test_each_expert_counts_most_where_it_was_fitted(replies: Replies, rambling: Replies) -> None:
    model = fit([replies], [], [rambling], SETTINGS)
    assert max(odds.small for odds in odds_of(model, replies)) < 0.5
    assert min(odds.small for odds in odds_of(model, rambling)) > 0.5


def test_a_small_model_is_expected_to_refuse_as_often_as_it_does(replies: Replies, rambling: Replies) -> None:
    model = fit([replies], [], [rambling], SETTINGS).small.ngrams
    even = fit_ngrams((rambling,), SETTINGS.c_ngrams)
    assert model.intercept - even.intercept == pytest.approx(np.log(4 / 12), abs=1e-3)


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
