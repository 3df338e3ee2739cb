"""Actors: seeded draws without replacement, and a policy that learns which prompt suits which question."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from ollama_utils.encoders import Encoder
from search.optimizing.actors import Actor, FixedActor, PolicyActor, RandomActor
from tests.search.small_world import PROMPTS, chance_of, questions

MORE = (*PROMPTS, "Answer the question.", "Be brief.")


def taught(actor: Actor, steps: int, count: int, seed: int = 0) -> None:
    """Let it choose and tell it what that brought."""
    chance = random.Random(seed)
    for step, (_, question) in enumerate(questions(steps, seed)):
        choice = actor.choose(question, MORE, count, step)
        rewards = [float(chance.random() < chance_of(question, prompt)) for prompt in choice.chosen]
        actor.learn(choice, rewards)


def worth(actor: PolicyActor) -> float:
    """How likely the policy's first prompt is right, on questions it has not seen."""
    fresh = [question for _, question in questions(80, seed=999)]
    picks = [MORE[int(np.argmax(actor.probabilities(question, MORE)))] for question in fresh]
    return float(np.mean([chance_of(question, pick) for question, pick in zip(fresh, picks, strict=True)]))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_choice_has_as_many_different_prompts_as_asked_for_or_all(encoder: Encoder, count: int) -> None:
    for actor in (PolicyActor(encoder, seed=1), RandomActor(seed=1)):
        choice = actor.choose("What is 2 plus 2?", MORE, count, 0)
        assert len(set(choice.chosen)) == len(choice.places) == min(count, len(MORE))
        assert sum(choice.probabilities) == pytest.approx(1)
        assert all(0 < chance <= 1 for chance in choice.inclusion)


def test_the_same_seed_and_step_choose_the_same_and_others_do_not(encoder: Encoder) -> None:
    for kind in (RandomActor, lambda seed: PolicyActor(encoder, seed=seed)):
        chosen = [[kind(seed).choose("q", MORE, 3, step).places for step in range(9)] for seed in (4, 4, 5)]
        assert chosen[0] == chosen[1] != chosen[2]
        assert len(set(chosen[0])) > 1


def test_a_new_policy_draws_evenly(encoder: Encoder) -> None:
    actor = PolicyActor(encoder)
    drawn = Counter(actor.choose("q", MORE, 1, step).places[0] for step in range(1200))
    assert all(abs(drawn[place] - 200) < 60 for place in range(len(MORE)))


@pytest.mark.parametrize(
    ("count", "steps", "least"), [(3, 150, 0.8), pytest.param(1, 500, 0.65, marks=pytest.mark.soak)]
)
def test_it_learns_which_prompt_suits_which_kind_of_question(
    encoder: Encoder, count: int, steps: int, least: float
) -> None:
    for seed in range(3):
        actor = PolicyActor(encoder, seed=seed)
        assert worth(actor) < 0.5
        taught(actor, steps, count, seed)
        assert worth(actor) > least


def test_what_it_learned_holds_for_a_child_that_shares_sections_and_for_other_places(
    encoder: Encoder,
) -> None:
    actor = PolicyActor(encoder)
    taught(actor, 150, 3)
    child = f"You are kind. {PROMPTS[1]}"
    odds = actor.probabilities(
        "How often does the letter a stand in the word dega?", [*MORE[:1], child, *MORE[2:]]
    )
    assert int(np.argmax(odds)) == 1


def test_rewards_that_are_missing_teach_nothing(encoder: Encoder) -> None:
    actor, other = PolicyActor(encoder), PolicyActor(encoder)
    choice = actor.choose("q", MORE, 3, 0)
    actor.learn(choice, [None, None, None])
    assert actor.probabilities("q", MORE).tolist() == other.probabilities("q", MORE).tolist()
    actor.learn(choice, [1.0, None, 0.0])
    odds = actor.probabilities("q", MORE)
    assert odds[choice.places[0]] > 1 / len(MORE) > odds[choice.places[2]]


def test_one_reward_that_is_better_than_foreseen_makes_a_prompt_likelier(encoder: Encoder) -> None:
    actor = PolicyActor(encoder)
    choice = actor.choose("q", MORE, 1, 0)
    actor.learn(choice, [1.0])
    assert actor.probabilities("q", MORE)[choice.places[0]] > 1 / len(MORE)


def test_full_exploration_draws_evenly_whatever_was_learned(encoder: Encoder) -> None:
    actor = PolicyActor(encoder, exploration=1.0)
    taught(actor, 100, 3)
    question = "What is 2 plus 2?"
    assert max(actor.probabilities(question, MORE)) > 0.5
    drawn = Counter(actor.choose(question, MORE, 1, step).places[0] for step in range(1200))
    assert all(abs(drawn[place] - 200) < 60 for place in range(len(MORE)))


@pytest.mark.parametrize("draws", [1000, pytest.param(4000, marks=pytest.mark.soak)])
def test_the_chance_of_being_chosen_makes_the_weights_unbiased(encoder: Encoder, draws: int) -> None:
    actor = PolicyActor(encoder)
    taught(actor, 60, 3)
    worths, question = np.arange(len(MORE)) / 5, "What is 2 plus 2?"
    truth = float(actor.probabilities(question, MORE) @ worths)
    guesses = []
    for step in range(draws):
        choice = actor.choose(question, MORE, 2, step)
        chosen = zip(choice.places, choice.inclusion, strict=True)
        guesses.append(sum(choice.probabilities[p] / chance * worths[p] for p, chance in chosen))
    assert np.mean(guesses) == pytest.approx(truth, abs=4 * float(np.std(guesses)) / draws**0.5)


def test_the_fixed_actor_keeps_to_its_prompt_whatever_the_population_holds() -> None:
    assert FixedActor("Mine.").choose("q", MORE, 3, 0).chosen == ("Mine.",) * 3
    assert FixedActor().choose("q", MORE, 1, 0).chosen == MORE[:1]


def test_what_it_cannot_use_is_refused_in_one_line(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="exploration must be from 0 to 1, got 2"):
        PolicyActor(encoder, exploration=2)
    with pytest.raises(ValueError, match="learning_rate must be finite"):
        PolicyActor(encoder, learning_rate=float("nan"))
    actor = PolicyActor(encoder)
    with pytest.raises(ValueError, match="at least one prompt"):
        actor.choose("q", [], 1, 0)
    with pytest.raises(ValueError, match="count of 0"):
        actor.choose("q", MORE, 0, 0)
    with pytest.raises(ValueError, match="expected 3 rewards"):
        actor.learn(actor.choose("q", MORE, 3, 0), [1.0])
