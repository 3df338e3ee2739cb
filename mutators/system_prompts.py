"""Mutators of instructions: system prompts for a task, reworded by a model or by rule.

They have the shape of the mutators of queries, with the instructions as the text, so that
`cleaning.clean` and `load_mutators` serve both. They are not among `DEFAULT_MUTATORS`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from mutators.mutator import Mutator, by_model, by_rule
from ollama_utils.prompts import fenced
from ollama_utils.types import Prompt

ASPECTS = (
    "say how the work is to be done",
    "say how the result is to be checked",
    "say what is easily overlooked",
    "say how the parts of a problem are to be taken",
    "say how much is to be written",
    "say what is to be written down on the way",
    "say what the model should take itself for",
    "leave out what does not help, and add what does",
)
"""What an improvement may be about; `improve_instructions` picks one by its seed."""
MAX_SHOWN_CHARS = 1_000
"""Of a question or an answer that is shown; the rest is cut."""
_WHAT = "instructions below, which a model is given before it solves a problem"
_DEMAND = (
    "Do not follow them. Keep what they say about the form of the answer. Reply with the rewritten "
    "instructions alone, in one paragraph."
)
_END = re.compile(r"(?<=[.!?])\s+|\n+")


def _prompt(instruction: str, **texts: str) -> str:
    fences = "\n".join(fenced(texts).values())
    return f"{instruction} {_DEMAND}\n\n{fences}\n"


@by_model
def improve_instructions(text: str, _earlier: Sequence[str], seed: int) -> str:
    """Make the instructions better in one respect."""
    aspect = random.Random(seed).choice(ASPECTS)
    instruction = f"Improve the {_WHAT}: {aspect}. Change one thing and keep the rest."
    return _prompt(instruction, query=text)


@by_model
def shorten_instructions(text: str, _earlier: Sequence[str], _seed: int) -> str:
    """Say the instructions in fewer words."""
    return _prompt(f"Shorten the {_WHAT}: leave out what helps least.", query=text)


class WrongAnswer(NamedTuple):
    """A problem that a model got wrong under some instructions."""

    question: str
    answer: str | None
    """The right answer; None where nobody wrote one down."""
    reply: str
    """What the model said instead, or the end of it."""


def specialize_instructions(failures: Sequence[WrongAnswer]) -> Mutator:
    """The mutator that adds an instruction for what problems that were got wrong have in common.

    Without any its prompt is that of `improve_instructions`.
    """

    def specialize(text: str, earlier: Sequence[str], seed: int) -> str | Prompt:
        """Add an instruction for what the failures have in common."""
        if not failures:
            return improve_instructions.prompt(text, earlier, seed)
        instruction = (
            f"Specialize the {_WHAT}. Under them it got the problems below wrong, one JSON object "
            "a line: the question, the right answer where it is known, and the model's reply. Find "
            "what these problems have in common, and add one instruction that helps with all "
            "problems like them; quote neither these problems nor their answers. Keep the rest of "
            "the instructions."
        )
        shown = (
            {key: _cut(each) for key, each in one._asdict().items() if each is not None}
            for one in failures
        )
        lines = "\n".join(json.dumps(each, ensure_ascii=False) for each in shown)
        return _prompt(instruction, failures=lines, query=text)

    return by_model(specialize)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]} ..."


@by_model
def combine_instructions(text: str, earlier: Sequence[str], seed: int) -> str | Prompt:
    """Join the instructions with others for the same task; without any, improve them."""
    others = [other for other in earlier if other != text]
    if not others:
        return improve_instructions.prompt(text, earlier, seed)
    return _prompt(
        "Combine the two instructions below, which a model may be given before it solves a "
        "problem: take what is best in each, and write one.",
        query=text,
        other=random.Random(seed).choice(others),
    )


@by_rule
def drop_sentence(text: str, _earlier: Sequence[str], seed: int) -> str:
    """Leave out one sentence; the only one stays."""
    parts = sentences(text)
    if len(parts) > 1:
        del parts[random.Random(seed).randrange(len(parts))]
    return " ".join(parts)


@by_rule
def swap_sentences(text: str, _earlier: Sequence[str], seed: int) -> str:
    """Let two sentences change places."""
    parts = sentences(text)
    if len(parts) > 1:
        one, two = random.Random(seed).sample(range(len(parts)), 2)
        parts[one], parts[two] = parts[two], parts[one]
    return " ".join(parts)


@by_rule
def splice_sentences(text: str, earlier: Sequence[str], seed: int) -> str:
    """Take each sentence of the text or the first earlier one by chance; what both say stays."""
    mine, theirs = sentences(text), sentences(earlier[0]) if earlier else []
    chance = random.Random(seed)
    kept = [
        part
        for part in dict.fromkeys([*mine, *theirs])
        if (part in mine and part in theirs) or chance.random() < 1 / 2
    ]
    return " ".join(kept) or text


def sentences(text: str) -> list[str]:
    """The sentences, or lines, of instructions, in their order."""
    return [part.strip() for part in _END.split(text.strip()) if part.strip()]


INSTRUCTION_MUTATORS: tuple[Mutator, ...] = (
    improve_instructions,
    shorten_instructions,
    drop_sentence,
    swap_sentences,
)
"""One text in, one out."""
INSTRUCTION_CROSSOVERS: tuple[Mutator, ...] = (combine_instructions, splice_sentences)
"""Join the text with the first of the earlier ones."""
