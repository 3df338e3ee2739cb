"""Children on their way: the same whatever the concurrency, no two alike, no plan without work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutators.registry import by_model, by_rule
from ollama_utils.plans import play_plans
from ollama_utils.types import Call, Completion
from search.genetics.fitness import Panel, Trial
from search.genetics.genome import Genome
from search.genetics.offspring import Child, Offspring
from search.genetics.variation import ChildSpec, Variation
from search.rewording import Rewriter
from search.task import Problem, ask_problem

SEED = Genome("Solve it.")
PROBLEMS = tuple(Problem(id=str(i), question=f"What is {i}?", answer=str(i)) for i in range(6))


@by_model
def advise(query: str, _earlier: Sequence[str], seed: int) -> str:
    """One of few pieces of advice, so that siblings are often alike."""
    return f"{query} Advice {seed % 3}."


@by_rule
def number(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Always something new."""
    return f"{query} Number {seed}."


def panel() -> Panel:
    return Panel(
        problems=PROBLEMS,
        scorer=lambda _, reply: float(sum(reply.encode()) % 2),
        ask=lambda problem, prompt: ask_problem(problem, prompt, model="target"),
        batch_size=2,
    )


class Server:
    """Echoes, after a time of its own for each call; counts."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.asked: list[Call] = []

    def __call__(self, call: Call) -> Completion:
        self.asked.append(call)
        time.sleep(self.rng.random() * 0.002)
        return Completion(text=call.prompt if call.model == "mutator" else f"{call.system}{call.prompt}")


def raise_all(cap: int, seed: int, *, count: int = 8, ahead: int = 3) -> tuple[list[Child], Server]:
    variation = Variation(
        mutators=(advise, number),
        crossovers=(),
        rewriter=Rewriter(model="mutator"),
    )
    specs = [ChildSpec(parents=(SEED,), steps=("advise",), seed=i) for i in range(count)]
    trials = panel()
    offspring = Offspring(specs, variation, [SEED], lambda genome: Trial(genome, trials), ahead)
    server = Server(seed)
    play_plans(offspring.plans(), lambda asking: asking.answer(server), cap)
    return offspring.children(), server


@settings(max_examples=25)
@given(cap=st.integers(1, 12), seed=st.integers(0, 99), ahead=st.integers(1, 9))
def test_children_are_the_same_whatever_the_concurrency_and_the_order_of_replies(
    cap: int, seed: int, ahead: int
) -> None:
    assert raise_all(cap, seed, ahead=ahead)[0] == raise_all(1, 0)[0]


def test_no_two_children_are_alike_nor_like_a_genome_that_is_known() -> None:
    children, server = raise_all(4, 0)
    genomes = [child.evaluated.genome for child in children if child.evaluated]
    assert len({*genomes, SEED}) == 9
    trials = {(call.system, call.prompt) for call in server.asked if call.model == "target"}
    assert len(trials) == 8 * len(PROBLEMS)


def test_so_many_drafts_are_made_before_the_first_trial() -> None:
    _, server = raise_all(1, 0, ahead=4)
    assert [call.model for call in server.asked[:5]] == ["mutator"] * 4 + ["target"]


@pytest.mark.parametrize("blocked", [0, 3])
def test_a_draft_that_hangs_keeps_nobody_from_working(blocked: int) -> None:
    """The others are tried meanwhile; those that then prove equal to it become others."""
    reference, _ = raise_all(1, 0)
    seeds: list[int] = []

    def slow(server: Server, call: Call) -> Completion:
        if call.model == "mutator":
            seeds.append(1)
            if len(seeds) == blocked + 1:
                time.sleep(0.15)
        return server(call)

    variation = Variation(
        mutators=(advise, number),
        crossovers=(),
        rewriter=Rewriter(model="mutator"),
    )
    specs = [ChildSpec(parents=(SEED,), steps=("advise",), seed=i) for i in range(8)]
    offspring = Offspring(specs, variation, [SEED], lambda genome: Trial(genome, panel()), 8)
    server = Server(1)
    play_plans(offspring.plans(), lambda asking: asking.answer(lambda call: slow(server, call)), 5)
    assert offspring.children() == reference
