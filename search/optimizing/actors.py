"""Actors: which prompts of a population a query is tried with.

An actor is asked for a choice, and learns from what it brought; several choices may be asked for before any
reward is known. `PolicyActor` learns: a softmax policy on embeddings. The others learn nothing, for
comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ollama_utils.encoders import CachedEncoder, Encoder


@dataclass(frozen=True, kw_only=True)
class PromptChoice:
    """Prompts chosen for a query, and how."""

    query: str
    prompts: tuple[str, ...]
    """All that there were to choose from."""
    places: tuple[int, ...]
    """Those chosen, by their place in `prompts`, in the order drawn."""
    probabilities: tuple[float, ...]
    """Of each of `prompts` under the policy, without what was added to explore."""
    inclusion: tuple[float, ...]
    """Of each chosen one: the chance that it is among the chosen, given how high the others came."""

    @property
    def chosen(self) -> tuple[str, ...]:
        """The prompts chosen, in the order drawn."""
        return tuple(self.prompts[place] for place in self.places)


class Actor(Protocol):
    """Chooses prompts, and may learn from what they brought. Used on one thread."""

    def choose(self, query: str, prompts: Sequence[str], count: int, step: int) -> PromptChoice:
        """Choose `count` prompts (all, where there are fewer) for a query.

        Args:
            query: what is asked.
            prompts: at least one.
            count: at least 1.
            step: keys the chance: the same step with the same policy makes the same choice.
        """
        ...

    def learn(self, choice: PromptChoice, rewards: Sequence[float | None]) -> None:
        """Learn what each chosen prompt brought; None: it brought no reward, which teaches nothing."""
        ...


class RandomActor:
    """Draws evenly, without replacement.

    Args:
        seed: of all its chance.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def choose(self, query: str, prompts: Sequence[str], count: int, step: int) -> PromptChoice:
        """Prompts drawn evenly (`Actor.choose`)."""
        check_choice(prompts, count)
        places = np.random.default_rng((self._seed, step)).permutation(len(prompts))[:count].tolist()
        return PromptChoice(
            query=query,
            prompts=tuple(prompts),
            places=tuple(places),
            probabilities=(1 / len(prompts),) * len(prompts),
            inclusion=(len(places) / len(prompts),) * len(places),
        )

    def learn(self, choice: PromptChoice, rewards: Sequence[float | None]) -> None:
        """Nothing is learned."""


class FixedActor:
    """Always one prompt, whatever the population holds; as many candidates are drawn from that one.

    Args:
        prompt: the prompt; None: the population's first.
    """

    def __init__(self, prompt: str | None = None) -> None:
        self._prompt = prompt

    def choose(self, query: str, prompts: Sequence[str], count: int, step: int) -> PromptChoice:  # noqa: ARG002 - no chance
        """The one prompt, `count` times (`Actor.choose`)."""
        check_choice(prompts, count)
        prompt = prompts[0] if self._prompt is None else self._prompt
        return PromptChoice(
            query=query,
            prompts=(prompt,),
            places=(0,) * count,
            probabilities=(1.0,),
            inclusion=(1.0,) * count,
        )

    def learn(self, choice: PromptChoice, rewards: Sequence[float | None]) -> None:
        """Nothing is learned."""


def check_choice(prompts: Sequence[str], count: int) -> None:
    """Check that there is something to choose.

    Raises:
        ValueError: no prompt is there, or none is asked for.
    """
    if not prompts:
        raise ValueError("an actor needs at least one prompt to choose from, got none")
    if count < 1:
        raise ValueError(f"an actor chooses at least 1 prompt, got a count of {count!r}")


Floats = NDArray[np.float64]

LEARNING_RATE = 3.0
ENTROPY = 0.01
PRIOR_WEIGHT = 0.2
"""The foreseen reward counts as much beside the others' rewards in a baseline, whose weights sum to 1."""
VALUE_RATE = 0.3
BIAS = 0.2
"""The constant beside a query's embedding, of length 1: what a prompt is worth whatever is asked."""


class PolicyActor:
    """Draws by a softmax over the prompts of scores that are bilinear in the embeddings of query and prompt.

    The score of prompt p for query q is [BIAS, e(q)]' W e(p): it stands on texts alone, so the policy
    outlives any change of the population, and a child is scored by what it has in common with prompts that
    were tried. Several are drawn without replacement: the highest of the log-probabilities plus Gumbel noise,
    keyed by seed and step (Kool, van Hoof and Welling 2019, arXiv 1903.06059).

    It learns by REINFORCE. Each chosen prompt's gradient is weighted by its probability over its chance of
    being chosen, the weights of a step summing to 1 (Kool, van Hoof and Welling 2019, "Buy 4 REINFORCE
    samples, get a baseline for free"). Its baseline is what the others of the step brought, with the reward
    foreseen for the query, linear in its embedding, as one more; a prompt that is alone has that alone.

    Args:
        encoder: embeds queries and prompts.
        seed: of all its chance.
        exploration: the share of draws that pay no heed to the policy.
        learning_rate: of the policy.
        entropy: what the policy's entropy, in nats, is worth beside a reward.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        seed: int = 0,
        exploration: float = 0.1,
        learning_rate: float = LEARNING_RATE,
        entropy: float = ENTROPY,
    ) -> None:
        if not 0 <= exploration <= 1:
            raise ValueError(f"exploration must be from 0 to 1, got {exploration!r}")
        for name, number in (("learning_rate", learning_rate), ("entropy", entropy)):
            if not (math.isfinite(number) and number >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {number!r}")
        self._encoder = encoder if isinstance(encoder, CachedEncoder) else CachedEncoder(encoder)
        self._seed = seed
        self._exploration = exploration
        self._learning_rate = learning_rate
        self._entropy = entropy
        self._weights: Floats = np.zeros((encoder.dimension + 1, encoder.dimension))
        self._value: Floats = np.zeros(encoder.dimension + 1)
        self._scale = 0.0

    def choose(self, query: str, prompts: Sequence[str], count: int, step: int) -> PromptChoice:
        """Prompts drawn by the policy (`Actor.choose`).

        Raises:
            EncodingError: a text has no embedding.
        """
        check_choice(prompts, count)
        number = len(prompts)
        policy = self.probabilities(query, prompts)
        logs = np.log((1 - self._exploration) * policy + self._exploration / number + np.finfo(float).tiny)
        noise = np.random.default_rng((self._seed, step)).gumbel(size=number)
        heights = logs + noise
        order = np.argsort(-heights, kind="stable")
        threshold = heights[order[count]] if count < number else -math.inf
        chances = -np.expm1(-np.exp(logs - threshold)) if count < number else np.ones(number)
        places = order[:count].tolist()
        return PromptChoice(
            query=query,
            prompts=tuple(prompts),
            places=tuple(places),
            probabilities=tuple(policy.tolist()),
            inclusion=tuple(chances[places].tolist()),
        )

    def learn(self, choice: PromptChoice, rewards: Sequence[float | None]) -> None:
        """One step along the gradient; without any reward, none (`Actor.learn`).

        Raises:
            ValueError: there is not one reward, or None, for each chosen prompt.
            EncodingError: a text has no embedding.
        """
        if len(rewards) != len(choice.places):
            raise ValueError(f"expected {len(choice.places)} rewards, one a prompt, got {len(rewards)}")
        scored = [i for i, reward in enumerate(rewards) if reward is not None]
        if not scored:
            return
        brought = np.array([rewards[i] for i in scored], float)
        places = np.array(choice.places)[scored]
        chances = np.array(choice.inclusion)[scored]
        query, prompts = self._features(choice.query, choice.prompts)
        policy = _softmax(prompts @ (query @ self._weights))
        shares = policy[places] / chances
        shares /= shares.sum()
        gains = shares * (brought - self._baselines(brought, shares, float(query @ self._value)))
        slope = self._entropy * _entropy_slope(policy) - policy * gains.sum()
        np.add.at(slope, places, gains)
        self._weights += self._learning_rate * np.outer(query, slope @ prompts)
        self._value += VALUE_RATE * query * (brought.mean() - query @ self._value) / (query @ query)

    def probabilities(self, query: str, prompts: Sequence[str]) -> Floats:
        """The policy: (N,), the probability of each of N prompts, without exploration.

        Raises:
            EncodingError: a text has no embedding.
        """
        features, rows = self._features(query, prompts)
        return _softmax(rows @ (features @ self._weights))

    def _features(self, query: str, prompts: Sequence[str]) -> tuple[Floats, Floats]:
        """What stands for the query, (D + 1,), and for the prompts, (N, D).

        A softmax pays no heed to what the prompts have in common, so their mean is taken off; they are
        scaled so that the first prompts ever seen lay at a distance of 1 from their mean, root mean square:
        encoders differ in how near to each other they put prompts.
        """
        rows = self._encoder.encode([query, *prompts]).astype(np.float64)
        centred = rows[1:] - rows[1:].mean(axis=0)
        if not self._scale:
            self._scale = float(np.sqrt(np.square(centred).sum(axis=1).mean()))
        return np.concatenate([[BIAS], rows[0]]), centred / (self._scale or 1.0)

    def _baselines(self, brought: Floats, shares: Floats, foreseen: float) -> Floats:
        """For each chosen prompt: the mean of what the others brought and what was foreseen, by weight."""
        others = (shares @ brought) - shares * brought
        baselines: Floats = (others + PRIOR_WEIGHT * foreseen) / (1 - shares + PRIOR_WEIGHT)
        return baselines


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max())
    shares: Floats = weights / weights.sum()
    return shares


def _entropy_slope(policy: Floats) -> Floats:
    """The gradient of a softmax policy's entropy by its scores."""
    logs = np.log(policy + np.finfo(float).tiny)
    slope: Floats = -policy * (logs - policy @ logs)
    return slope
