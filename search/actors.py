"""What learns in an optimization: the actor, which picks prompts for a query, and a ridge critic.

Both work on embeddings of texts alone, so what they learned outlives any change of the prompts.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ollama_utils.encoders import Encoder
from search.chance import seed_of

Floats = NDArray[np.float64]

LEARNING_RATE = 3.0
BIAS = 0.2
"""The constant beside a query's embedding, of length 1: what a prompt is worth for any query."""
PRIOR_WEIGHT = 0.2
"""Of the mean reward so far in a baseline; the other rewards of the step weigh 1 together."""
MEAN_RATE = 0.05
"""The share of the newest step in the mean reward so far."""
SKETCH = 128
"""The length of a projected embedding."""
RIDGE = 10.0
"""The penalty on the squared weights: of .1, 1 and 10 the best for four kinds of queries."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """K prompts that an actor chose for a query, out of N."""

    query: str
    prompts: tuple[str, ...]
    places: tuple[int, ...]
    """Where the K chosen ones stand in `prompts`, in the order they were drawn."""
    probabilities: tuple[float, ...]
    """(N,), of each prompt under the policy, exploration left out."""
    inclusion: tuple[float, ...]
    """(K,), the chance of each to be chosen, given the noise of the others; where all are chosen,
    how often it is."""


class PolicyActor:
    """Draws prompts by a softmax policy, and learns it by REINFORCE (at a rate of 0 it does not).

    The score of prompt p for query q is [BIAS, e(q)]' W e(p), bilinear in the embeddings: a new
    prompt is scored by what it has in common with those that were tried. A chosen prompt's gradient
    is weighted by its probability over its chance of being chosen; its baseline is the mean reward
    of the other chosen prompts (Kool, van Hoof and Welling 2019, "Buy 4 REINFORCE samples, get a
    baseline for free"), with the mean reward of earlier steps as one more.
    The share `exploration` of the draws is even, whatever was learned. What the encoder raises,
    EncodingError, every method raises.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        seed: int = 0,
        exploration: float = 0.1,
        learning_rate: float = LEARNING_RATE,
    ) -> None:
        self._encoder, self._seed = encoder, seed
        self._exploration, self._learning_rate = exploration, learning_rate
        self._weights: Floats = np.zeros((encoder.dimension + 1, encoder.dimension))
        self._mean: float | None = None
        self._scale = 0.0

    def probabilities(self, query: str, prompts: Sequence[str]) -> Floats:
        """(N,), the probability of each of N prompts, exploration left out."""
        if not self._learning_rate:
            return np.full(len(prompts), 1 / len(prompts))
        features, rows = self._features(query, prompts)
        return _softmax(rows @ (features @ self._weights))

    def choose(self, query: str, prompts: Sequence[str], count: int, step: int) -> Choice:
        """Choose `count` prompts for a query; of fewer each is chosen again in its turn.

        They are drawn without replacement: those with the highest log-probability plus Gumbel noise
        (Kool, van Hoof and Welling 2019, arXiv 1903.06059). The step keys the chance: equal steps
        of equal policies make equal choices.
        """
        policy = self.probabilities(query, prompts)
        drawn = (1 - self._exploration) * policy + self._exploration / len(prompts)
        logs = np.log(drawn + np.finfo(float).tiny)
        noise = np.random.default_rng(seed_of(self._seed, step, query)).gumbel(size=len(prompts))
        order = np.argsort(-(logs + noise), kind="stable")
        places = np.resize(order, count)
        chances = np.bincount(places, minlength=len(prompts)).astype(np.float64)
        if count < len(prompts):
            chances = -np.expm1(-np.exp(logs - (logs + noise)[order[count]]))
        return Choice(
            query=query,
            prompts=tuple(prompts),
            places=tuple(places.tolist()),
            probabilities=tuple(policy.tolist()),
            inclusion=tuple(chances[places].tolist()),
        )

    def learn(self, choice: Choice, rewards: Sequence[float | None]) -> None:
        """Take one step along the gradient, by the reward of each chosen prompt that has one."""
        scored = [k for k, reward in enumerate(rewards) if reward is not None]
        if not scored or not self._learning_rate:
            return
        values = np.array([rewards[k] for k in scored], float)
        places, chances = np.array(choice.places)[scored], np.array(choice.inclusion)[scored]
        query, prompts = self._features(choice.query, choice.prompts)
        policy = _softmax(prompts @ (query @ self._weights))
        shares = policy[places] / chances
        shares /= shares.sum()
        mean = float(values.mean())
        earlier = mean if self._mean is None else self._mean
        others = shares @ values - shares * values
        gains = shares * (values - (others + PRIOR_WEIGHT * earlier) / (1 - shares + PRIOR_WEIGHT))
        slope = -policy * gains.sum()
        np.add.at(slope, places, gains)
        self._weights += self._learning_rate * np.outer(query, slope @ prompts)
        self._mean = earlier + MEAN_RATE * (mean - earlier)

    def _features(self, query: str, prompts: Sequence[str]) -> tuple[Floats, Floats]:
        """What stands for the query, (D + 1,), and for the prompts, (N, D).

        What all prompts have in common makes no difference to a softmax: their mean is subtracted.
        Encoders differ in how far apart they put prompts: they are scaled so that the first ones
        ever seen have a root mean square distance of 1 from their mean.
        """
        rows = self._encoder.encode([query, *prompts]).astype(np.float64)
        centred = rows[1:] - rows[1:].mean(axis=0)
        if not self._scale:
            self._scale = float(np.sqrt(np.square(centred).sum(axis=1).mean()))
        return np.concatenate([[BIAS], rows[0]]), centred / (self._scale or 1.0)


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max())
    shares: Floats = weights / weights.sum()
    return shares


class RidgeCritic:
    """Predicts the feedback on a reply by ridge regression on embeddings, one row at a time.

    A row is the projected embeddings of prompt, query and reply, and a sketch each of prompt x
    query and of query x reply: which prompt suits which query is no sum of the two. (The product of
    two random projections, entry by entry, is a sketch of all products of entries; Kar and Karnick
    2012.) Each row changes the inverse of X'X + RIDGE I by a matrix of rank one (Sherman and
    Morrison 1950). Before any feedback every score is .5. Many threads may share it. What the
    encoder raises, EncodingError, both methods raise. Each of the five parts of a row has the
    length `sketch`; memory is the square of all.
    """

    def __init__(self, encoder: Encoder, *, sketch: int = SKETCH) -> None:
        self._encoder = encoder
        signs = np.random.default_rng(0).integers(0, 2, (7, encoder.dimension, sketch)) * 2.0 - 1
        self._projections = signs / math.sqrt(sketch)
        self._inverse: Floats = np.eye(1 + 5 * sketch) / RIDGE
        self._weights: Floats = np.zeros(1 + 5 * sketch)
        self._lock = threading.Lock()

    def score(self, prompt: str, query: str, response: str) -> float:
        """What a reply is worth, from 0 to 1."""
        row = self._row(prompt, query, response)
        with self._lock:
            return float(np.clip(0.5 + row @ self._weights, 0, 1))

    def feedback(self, prompt: str, query: str, response: str, value: float) -> None:
        """Learn what a reply was worth, from 0 to 1."""
        row = self._row(prompt, query, response)
        with self._lock:
            reach = self._inverse @ row
            gain = reach / (1 + reach @ row)
            self._weights += gain * (value - 0.5 - row @ self._weights)
            self._inverse -= np.outer(gain, reach)

    def _row(self, *texts: str) -> Floats:
        """(1 + 5 * sketch,), from prompt, query and reply."""
        prompt, query, reply = self._encoder.encode(texts).astype(np.float64)
        sides = (prompt, query, reply, prompt, query, query, reply)
        parts = [
            side @ projection for side, projection in zip(sides, self._projections, strict=True)
        ]
        scale = math.sqrt(len(parts[0]))
        products = [parts[3] * parts[4] * scale, parts[5] * parts[6] * scale]
        return np.concatenate([np.ones(1), *parts[:3], *products])
