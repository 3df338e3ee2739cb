"""Actors draw by seed and learn which prompt suits which question; so does the ridge critic."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ollama_utils.encoders import make_encoder
from search.actors import PolicyActor, RidgeCritic
from tests.search.small_world import PROMPTS, chance_of, questions

MORE = (*PROMPTS, "Answer the question.", "Be brief.")
QUESTION = "What is 2 plus 2?"
ENCODER = make_encoder("hashing")
Triple = tuple[str, str, str]


def teach(actor: PolicyActor, steps: int, count: int, seed: int = 0) -> None:
    """Let it choose, and learn a reward for each chosen prompt."""
    chance = random.Random(seed)
    for step, question in enumerate(questions(steps, seed)):
        choice = actor.choose(question, MORE, count, step)
        chances = [chance_of(question, MORE[place]) for place in choice.places]
        rewards = [float(chance.random() < each) for each in chances]
        actor.learn(choice, rewards)


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("rate", [0.0, 3.0])
def test_a_choice_is_of_different_prompts_and_depends_on_seed_and_step(
    rate: float, count: int
) -> None:
    one, again, other = (
        [
            PolicyActor(ENCODER, seed=seed, learning_rate=rate).choose(QUESTION, MORE, count, step)
            for step in range(9)
        ]
        for seed in (4, 4, 5)
    )
    assert one == again != other
    assert len({choice.places for choice in one}) > 1
    for choice in one:
        assert len(choice.places) == count
        assert len(set(choice.places)) == min(count, len(MORE))
        assert sum(choice.probabilities) == pytest.approx(1)


@pytest.mark.parametrize("count", [2, 8])
def test_the_chance_that_a_prompt_is_among_the_chosen_weighs_its_reward_fairly(count: int) -> None:
    """The weighted mean of a constant is that constant, and of each prompt its probability."""
    actor = PolicyActor(ENCODER, exploration=0.3)
    teach(actor, 60, 3)
    sums = np.zeros(len(MORE))
    draws = 1500
    for step in range(draws):
        choice = actor.choose(QUESTION, MORE, count, step)
        for place, chance in zip(choice.places, choice.inclusion, strict=True):
            sums[place] += choice.probabilities[place] / chance
    assert sums / draws == pytest.approx(np.array(choice.probabilities), abs=0.04)


def test_a_reward_that_is_missing_teaches_nothing() -> None:
    actor = PolicyActor(ENCODER)
    choice = actor.choose(QUESTION, MORE, 3, 0)
    before = actor.probabilities(QUESTION, MORE)
    actor.learn(choice, [None, None, None])
    assert (actor.probabilities(QUESTION, MORE) == before).all()
    actor.learn(choice, [1.0, None, 0.0])
    better, _, worse = actor.probabilities(QUESTION, MORE)[list(choice.places)]
    assert better > worse


def suits(prompt: str, query: str) -> float:
    """A prompt helps with one kind of query and harms another."""
    return float(("step" in prompt) == ("cream" in query))


def cases(*verbs: str) -> list[Triple]:
    return [
        (prompt, f"How do I {verb} {thing}?", f"You {verb} it.")
        for verb in verbs
        for thing in ("cream", "a door")
        for prompt in ("Think step by step.", "Answer at once.", "You are a cook.")
    ]


def test_a_ridge_critic_knows_nothing_at_first_and_learns_which_prompt_suits_which_query() -> None:
    critic = RidgeCritic(ENCODER)
    assert critic.score("Answer.", "What is 2 + 3?", "5") == 0.5
    for case in 5 * cases("bake", "whip", "paint", "shake", "open", "sell"):
        critic.feedback(*case, suits(*case[:2]))
    for case in cases("fold", "carry", "freeze"):
        assert (critic.score(*case) > 0.5) == (suits(*case[:2]) > 0.5)
