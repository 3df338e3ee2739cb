"""The call that rewords a text by a mutator that asks a model, and the text that its reply holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mutators.cleaning import clean
from mutators.mutator import Mutator
from ollama_utils.types import Call, Completion


@dataclass(frozen=True, kw_only=True)
class Rewriter:
    """The model that rewords."""

    model: str
    """As the server lists it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ollama's options; each call has a seed of its own beside them."""

    def call(self, mutator: Mutator, text: str, earlier: Sequence[str], seed: int) -> Call:
        """What asks the model for another wording of a text.

        Raises:
            MutatorError: the mutator's function raised, or returned no prompt.
        """
        prompt = mutator.prompt(text, earlier, seed)
        return Call(
            model=self.model,
            prompt=prompt.text,
            system=prompt.system,
            examples=prompt.examples,
            options={**self.options, **prompt.options, "seed": seed},
            think=prompt.think,
            role="mutator",
        )


def reworded(reply: Completion, text: str) -> str:
    """The other wording of a text that a reply holds; empty where the reply failed, was cut, or has none."""
    return "" if reply.error or reply.truncated else clean(reply.text, text)
