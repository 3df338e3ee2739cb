"""The mutators that ask a model: each function returns the whole prompt for one rewrite.

Every prompt has the same shape: an instruction that opens with what to do, the demand for the rewrite
alone, and the query between `<query>` tags, which it cannot close. What a model adds all the same,
`cleaning.clean` removes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from mutators.mutator import by_model
from ollama_utils.prompts import tagged

PURPOSES = (
    "that it is for a class they teach",
    "that it is for an article they are writing",
    "that it is for a story they are writing",
    "that they want to learn how it works",
    "that they want to stay safe",
    "that it is part of their job",
)
"""Ordinary reasons to ask; `add_context` picks one by its seed."""

VIEWPOINTS = ("a teacher", "a student", "a journalist", "a researcher", "a parent", "a beginner")
"""People who may ask; `change_perspective` picks one by its seed."""


def _prompt(instruction: str, query: str) -> str:
    demand = "Do not answer the query. Reply with the rewritten query alone."
    return f"{instruction} {demand}\n\n{tagged('query', query)}\n"


@by_model
def paraphrase(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Say the same in other words."""
    return _prompt("Paraphrase the query: use other words, and keep its meaning and every detail.", query)


@by_model
def add_context(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Say why the person asks."""
    purpose = random.Random(seed).choice(PURPOSES)
    return _prompt(
        f"Add context to the query: let the person who asks say, in a few words that fit, {purpose}. "
        "The question itself stays the same.",
        query,
    )


@by_model
def change_perspective(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Ask from somebody else's point of view."""
    viewpoint = random.Random(seed).choice(VIEWPOINTS)
    return _prompt(
        f"Change the perspective of the query: ask the same as {viewpoint} would ask it, or in the third "
        "person. Keep its meaning.",
        query,
    )


@by_model
def clarify_intent(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Make plain what is asked, so that it cannot be misread."""
    return _prompt(
        "Clarify the intent of the query: replace words that can be misread by what is plainly meant, and "
        "ask for exactly the same thing.",
        query,
    )


@by_model
def shorten(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Ask the same in fewer words."""
    return _prompt("Shorten the query: use as few words as you can, and keep its meaning.", query)


@by_model
def expand(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Ask the same at greater length."""
    return _prompt(
        "Expand the query: ask the same in one or two longer sentences, and spell out what is only implied.",
        query,
    )


@by_model
def simplify(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Ask the same in plain, everyday words."""
    return _prompt(
        "Simplify the query: use plain, everyday words and one short sentence. Keep its meaning.", query
    )


@by_model
def formalize(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Ask the same in formal language."""
    return _prompt("Formalize the query: use precise, professional language. Keep its meaning.", query)


@by_model
def passive_voice(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Ask the same in the passive voice."""
    return _prompt("Use the passive voice in the query, and keep its meaning.", query)


@by_model
def generate_similar(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Ask another query with the same intent."""
    return _prompt(
        "Write a similar query: it may be built and worded quite differently, but whoever asks it wants the "
        "same thing.",
        query,
    )


@by_model
def crossover(query: str, earlier: Sequence[str], seed: int) -> str:
    """Join the query with an earlier rewording of the same original.

    With no earlier rewording that differs from the query there is nothing to join: the prompt is then that of
    `paraphrase`.
    """
    others = [other for other in earlier if other != query]
    if not others:
        return paraphrase.prompt(query, earlier, seed)
    other = random.Random(seed).choice(others)
    return (
        "Combine the two queries: they ask the same thing in two ways, so take the best wording of each and "
        "write one query. Do not answer it. Reply with the rewritten query alone.\n\n"
        f"{tagged('query', query)}\n{tagged('other', other)}\n"
    )
