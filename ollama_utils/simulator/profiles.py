"""Hardware as four numbers: how long prefill and decoding take on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One machine with one model: `t_step(n) = step + per_slot * n + per_kilotoken * context / 1000`.

    A decoding step gives every active slot one token; n counts the active slots.
    """

    step_ms: float
    """Milliseconds of a decoding step whatever is active."""
    per_slot_ms: float = 0.0
    """Milliseconds that each active slot adds to the step."""
    per_kilotoken_ms: float = 0.0
    """Milliseconds that each thousand tokens of context add to the step."""
    prefill_tokens_per_s: float
    """Prompt tokens read in a second."""

    def prefill_s(self, prompt_tokens: int) -> float:
        """Seconds until the prompt is read."""
        return prompt_tokens / self.prefill_tokens_per_s

    def decode_s(self, reply_tokens: int) -> float:
        """Seconds until the reply is written, for profiles without a share between slots."""
        return reply_tokens * self.step_ms / 1000


PROFILES = {
    # Not a machine: 4 ms a token whatever else is active. The prefill is as good as none (a
    # microsecond a token), since Ollama's replies always carry its duration.
    "ideal": Profile(step_ms=4.0, prefill_tokens_per_s=1e6),
}
"""The profiles by name."""
