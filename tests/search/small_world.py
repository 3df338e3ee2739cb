"""A world of a few lines for the hybrid search's tests: kinds of questions, and which prompt suits which."""

from __future__ import annotations

import random

from ollama_utils.errors import ServerUnreachableError
from ollama_utils.types import Call, Completion, Usage

SPECIALISTS = {
    "sums": "Work out the sum step by step with the digits.",
    "letters": "Spell the word letter by letter and count.",
    "words": "Sort the words by the alphabet one at a time.",
    "units": "Write the units down and convert kilometres to metres.",
}
PROMPTS = tuple(SPECIALISTS.values())


def questions(count: int, seed: int) -> list[tuple[str, str]]:
    """So many pairs of a kind and a question of that kind."""
    chance = random.Random(seed)
    pairs = []
    for _ in range(count):
        kind = chance.choice(list(SPECIALISTS))
        word = "".join(chance.choices("abcdeg", k=5))
        number = chance.randint(2, 99)
        text = {
            "sums": f"What is {number} plus {chance.randint(2, 99)}?",
            "letters": f"How often does the letter a stand in the word {word}?",
            "words": f"Put the words {word}, pear and plum into alphabetical order.",
            "units": f"How many metres are {number} kilometres?",
        }[kind]
        pairs.append((kind, text))
    return pairs


def kind_of(question: str) -> str:
    """The kind of a question."""
    marks = {"plus": "sums", "letter": "letters", "alphabetical": "words", "metres": "units"}
    return next(kind for mark, kind in marks.items() if mark in question)


def chance_of(question: str, prompt: str) -> float:
    """How likely a reply under a prompt is right: .9 where it suits the kind of question, else .2."""
    return 0.9 if SPECIALISTS[kind_of(question)] in prompt else 0.2


class SmallModel:
    """A model that answers `right` or `wrong`, as the call's texts and seed decide.

    Args:
        broken: calls whose system prompt holds this text fail.
    """

    def __init__(self, broken: str | None = None) -> None:
        self.calls: list[Call] = []
        self._broken = broken

    def generate(self, call: Call) -> Completion:
        """The reply, or an error."""
        self.calls.append(call)
        if self._broken and self._broken in (call.system or ""):
            return Completion(text="", error=ServerUnreachableError("nobody is there"))
        drawn = random.Random(f"{call.system}|{call.prompt}|{call.options['seed']}").random()
        text = "right" if drawn < chance_of(call.prompt, call.system or "") else "wrong"
        return Completion(text=text, usage=Usage(prompt_tokens=10, completion_tokens=2))


def is_right(query: str, reply: str) -> float:
    """Feedback: 1 for a right reply."""
    del query
    return float(reply == "right")
