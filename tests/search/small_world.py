"""A small world for tests of `optimize`: kinds of questions, and which prompt suits which."""

from __future__ import annotations

import random
from collections.abc import Container

from ollama_utils.errors import ServerUnreachableError
from ollama_utils.types import Call, Completion, Usage

SPECIALISTS = {
    "sums": "Work out the sum step by step with the digits.",
    "letters": "Spell the word letter by letter and count.",
    "words": "Sort the words by the alphabet one at a time.",
    "units": "Write the units down and convert kilometres to metres.",
}
PROMPTS = tuple(SPECIALISTS.values())


def questions(count: int, seed: int) -> list[str]:
    """So many questions, each of one of the kinds."""
    chance = random.Random(seed)
    texts = []
    for _ in range(count):
        word, number = "".join(chance.choices("abcdeg", k=5)), chance.randint(2, 99)
        kinds = (
            f"What is {number} plus {chance.randint(2, 99)}?",
            f"How often does the letter a stand in the word {word}?",
            f"Put the words {word}, pear and plum into alphabetical order.",
            f"How many metres are {number} kilometres?",
        )
        texts.append(chance.choice(kinds))
    return texts


def chance_of(question: str, prompt: str) -> float:
    """How likely a reply is right: .9 where the prompt suits the kind of question, else .2."""
    marks = {"plus": "sums", "letter": "letters", "alphabetical": "words", "metres": "units"}
    kind = next(kind for mark, kind in marks.items() if mark in question)
    return 0.9 if SPECIALISTS[kind] in prompt else 0.2


class SmallModel:
    """Answers `right` or `wrong`, as the call's texts and seed decide; as a mutator a new prompt.

    Args:
        broken: calls with these system prompts fail.
    """

    def __init__(self, broken: Container[str | None] = ()) -> None:
        self.calls: list[Call] = []
        self._broken = broken

    def generate(self, call: Call) -> Completion:
        """The reply, or an error."""
        self.calls.append(call)
        if call.system in self._broken:
            return Completion(text="", error=ServerUnreachableError("nobody is there"))
        chance = random.Random(f"{call.system}|{call.prompt}|{call.options['seed']}")
        if call.role == "mutator":
            return Completion(
                text=f"{chance.choice(PROMPTS)} Take care {chance.randrange(9)} times."
            )
        is_right = chance.random() < chance_of(call.prompt, call.system or "")
        usage = Usage(prompt_tokens=10, completion_tokens=2)
        return Completion(text="right" if is_right else "wrong", usage=usage)


def is_right(_query: str, reply: str) -> float:
    """Feedback: 1 for a right reply."""
    return float(reply == "right")
