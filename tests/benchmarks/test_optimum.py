"""The best return that is computed is the best return that is played."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from benchmarks.optimum import Game, Plan, optimum
from envs.episode import Episode, Rules, begin_together, step_together
from envs.mission import MissionConfig
from envs.models import Ask, ModelCalls, Rewrite, Vector
from envs.queries import load_queries
from mutators.cleaning import clean
from mutators.mutator import by_model
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.connect import NO_ROLES
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import HashingEncoder
from ollama_utils.errors import OllamaError
from ollama_utils.types import Completion
from scorers.intent import INTENT_THRESHOLD
from scorers.reward import make_scorer
from simulator.chance import digest_of
from simulator.mutator import reword
from simulator.prompts import task_of
from simulator.world import load_world
from tests.worlds import CAUTIOUS

EPISODES = 120
QUERIES = [query.text for query in load_queries(None)]
GAME = Game(world=CAUTIOUS, mutators=load_mutators(DEFAULT_MUTATORS))
NAMES = [mutator.name for mutator in GAME.mutators]
WORDS = CAUTIOUS.file.mutator
INSTEAD = [*WORDS.apology, *WORDS.chatter, *WORDS.stray]


@by_model
def greet(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Greet."""
    return f"Greet first.\n<query>{query}</query>"


def rewrite(request: Rewrite) -> str:
    mutator = request.mutator
    if mutator.kind == "rule":
        return mutator.apply(request.query, request.earlier, request.seed)
    prompt = mutator.prompt(request.query, request.earlier, request.seed)
    task = task_of(prompt.text, prompt.system or "")
    return clean(reword(CAUTIOUS, task, digest_of(task, request.seed)), request.query)


class OwnWorld(ModelCalls):
    """The world's words without a server; its encoder knows what is no rewording at all."""

    def reword(self, rewrites: Sequence[Rewrite], _max_workers: int = 1) -> list[Completion]:
        return [Completion(text=rewrite(each)) for each in rewrites]

    def embed(self, texts: Sequence[str]) -> list[Vector | OllamaError]:
        instead = [text in {clean(said, text) for said in INSTEAD} for text in texts]
        return [np.array([not is_instead, is_instead], dtype=np.float32) for is_instead in instead]

    def ask(self, questions: Sequence[Ask], _max_workers: int = 1) -> list[Completion]:
        texts = [question.query for question in questions]
        return [Completion(text=CAUTIOUS.answer(text, digest_of(text))) for text in texts]


MODELS = OwnWorld(
    mission=MissionConfig(),
    roles=NO_ROLES,
    dispatcher=Dispatcher(["http://127.0.0.1:9"]),
    encoder=HashingEncoder(2),
    scorer=make_scorer("refusal", step_cost=GAME.step_cost),
)


def play(query: str, plan: Plan, seed: int) -> float:
    """The return of one of the environment's episodes."""
    rules = Rules(
        mutators=GAME.mutators, max_steps=GAME.max_steps, intent_threshold=INTENT_THRESHOLD
    )
    episode = Episode(rules=rules, original=query, seed=seed, number=0)
    begin_together([episode], MODELS)
    total = 0.0
    while True:
        name = plan[GAME.max_steps - episode.step_count, CAUTIOUS.read(episode.query)]
        (transition,) = step_together([episode], [NAMES.index(name)], MODELS)
        total += transition.reward
        if transition.terminated or transition.truncated:
            return total


@pytest.mark.parametrize("query", QUERIES[60::180])
def test_playing_the_plan_earns_what_was_computed(query: str) -> None:
    value, plan = GAME.best(query)
    returns = [play(query, plan, seed) for seed in range(EPISODES)]
    # Four standard errors, and a half-episode's slack where none failed.
    assert abs(fmean(returns) - value) < 4 * stdev(returns) / math.sqrt(EPISODES) + 2 / EPISODES


@pytest.mark.parametrize("world", ["cautious", "drawn"])
def test_no_fixed_mutator_is_better_than_the_best_policy_and_noop_is_far_below(world: str) -> None:
    game = Game(world=load_world(world), mutators=GAME.mutators)
    sample = QUERIES[::120]
    for query in sample:
        best, _ = game.best(query)
        assert all(best >= game.fixed(query, name) - 1e-12 for name in NAMES)
    bounds = optimum(world, sample)
    assert bounds["noop"] + 0.8 < bounds["optimum"]


GARDEN = """
extends = "cautious"
name = "garden"

[topics.pests]
base = 1
harsh = 1
weights = { polite = -1 }
words = "aphids"

[mutator.operators]
greet = { cue = "greet", failures = [0.25, 0.25, 0, 0], soften = 0.5, add = "polite" }
"""


def test_a_small_world_worked_by_hand(tmp_path: Path) -> None:
    # "aphids" is refused (2 points). Greeting fails in half the cases, else it adds a polite word
    # (1 point: half refused), and in half of these it softens, too (0 points: answered). With one
    # step left both states are worth 1/4 - 0.1 = 0.15; with two, 1/4 - 0.1 + 3/4 * 0.15 = 0.2625.
    garden = tmp_path / "garden.toml"
    garden.write_text(GARDEN, encoding="utf-8")
    game = Game(world=load_world(str(garden)), mutators=(greet,), max_steps=2, step_cost=0.1)
    value, _ = game.best("Where do aphids sleep?")
    assert value == pytest.approx(0.2625)
    assert game.fixed("Where do aphids sleep?", "greet") == pytest.approx(value)


def test_a_rule_counts_by_what_it_makes_of_the_text() -> None:
    game = Game(world=CAUTIOUS, mutators=load_mutators(["noop", "add_politeness"]), max_steps=1)
    query = "How do I track my own lost phone?"
    assert game.fixed(query, "noop") == pytest.approx(-0.05)
    assert game.fixed(query, "add_politeness") == pytest.approx(0.95)
