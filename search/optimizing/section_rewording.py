"""Another text for a section of a prompt, by the mutators of instructions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mutators.cleaning import clean
from mutators.instructions import INSTRUCTION_MUTATORS, combine_instructions
from mutators.mutator import Mutator
from ollama_utils.types import Call
from search.candidates import Llm, heed_cancel

REWORDING_TEMPERATURE = 0.8


@dataclass(frozen=True, kw_only=True)
class SectionRewording:
    """Rewords a section; stands as `reword` of a `PromptPopulation`."""

    llm: Llm
    """Answers the calls."""
    model: str
    """The mutator, as the server lists it."""
    mutators: Sequence[Mutator] = (*INSTRUCTION_MUTATORS, combine_instructions)
    """One of them is drawn by the seed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """More of Ollama's options; `temperature` and `seed` are set here."""
    think: bool | None = None
    """Whether a thinking model thinks; None leaves it to the server."""

    def __call__(self, section: str, text: str, others: Sequence[str], seed: int) -> str | None:  # noqa: ARG002 - any section
        """The section reworded; None where the call failed, or its reply was cut or empty.

        Raises:
            CallCancelledError: the run was stopped.
            MutatorError: a mutator of the user's raised.
        """
        mutator = random.Random(seed).choice(self.mutators)
        if mutator.kind == "rule":
            return mutator.apply(text, others, seed) or None
        options = {**self.options, "temperature": REWORDING_TEMPERATURE, "seed": seed}
        prompt = mutator.prompt(text, others, seed)
        call = Call(model=self.model, prompt=prompt, options=options, think=self.think)
        completion = heed_cancel(self.llm.generate(call))
        return None if completion.error or completion.truncated else clean(completion.text, text) or None
