"""How fast hardware is, and how long replies are.

A profile is a published measurement: how fast one machine decodes with n slots, reads prompts and loads
models. The length of a reply is a constant, or a lognormal draw keyed by the request.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One machine with one kind of model.

    A decoding step gives every active slot one token, so it takes `1000 * n / tokens_per_s[n]` ms. Between
    two measured n the step is interpolated, beyond the last its slope goes on (an extrapolation).
    """

    tokens_per_s: Mapping[int, float]
    """Measured tokens a second of all active slots together, by their number; 1 must be there."""
    measured_context: float = 0.0
    """Tokens in each slot's context while that was measured."""
    per_kilotoken_ms: float = 0.0
    """Milliseconds that each thousand tokens of context, of all slots together, add to the step."""
    prefill_tokens_per_s: float
    """Prompt tokens read in a second."""
    load_gb_per_s: float = math.inf
    """Gigabytes of a model brought into memory in a second."""
    settle_s: float = 0.0
    """Seconds from the end of an unloaded model's process until its memory counts as free."""
    max_loaded_models: float = math.inf
    """Models kept in memory when OLLAMA_MAX_LOADED_MODELS leaves it open."""
    shared: bool = True
    """Whether calls share the machine's time; if not, each has a machine of its own."""


# How fast models load and how long memory takes to come free are assumptions: nobody publishes them beside
# these measurements. Rates are of usual NVMe drives (2 to 6 GB/s). Ollama waits for the memory of discrete
# GPUs alone, typically 0.5 to 1.5 s (a comment in its server/sched.go); elsewhere 0.5 s stands for the end of
# one process and the start of the next. Three models are Ollama's own default for one GPU, and for a CPU.
PROFILES = {
    # Not a machine: 4 ms a token whatever else is active, models are there at once and without end. The
    # prefill is as good as none (a microsecond a token), since Ollama's replies always carry its duration.
    "ideal": Profile(tokens_per_s={1: 250.0}, prefill_tokens_per_s=1e6, shared=False),
    # NVIDIA GB10 (DGX Spark), Qwen2.5-Coder 7B Q8_0: llama.cpp benches/dgx-spark.md, its rows of 512 prompt
    # and 32 reply tokens (so 528 tokens of context on average). The context's share is the slope to its rows
    # of 4096 and 8192 prompt tokens.
    "gb10": Profile(
        tokens_per_s={1: 29.24, 2: 54.46, 4: 104.33, 8: 195.67, 16: 335.01, 32: 593.27},
        measured_context=528,
        per_kilotoken_ms=0.275,
        prefill_tokens_per_s=2350,
        load_gb_per_s=3.0,  # assumption
        settle_s=0.5,  # assumption
        max_loaded_models=3,
    ),
    # Apple M2 Ultra, 7B Q8_0: llama.cpp pull request 16894, rows of 512 and 32 tokens as above; the context's
    # share is the mean slope to its rows of 4096 prompt tokens (0.18 to 0.20).
    "m2-ultra": Profile(
        tokens_per_s={1: 79.04, 2: 136.37, 4: 224.52},
        measured_context=528,
        per_kilotoken_ms=0.19,
        prefill_tokens_per_s=1600,
        load_gb_per_s=5.0,  # assumption
        settle_s=0.5,  # assumption
        max_loaded_models=3,
    ),
    # NVIDIA RTX 3090, 8B Q4_0: llama.cpp pull request 15802. No prefill was published with it; the nearest is
    # the same model as Q8_0 in batches of 512, 3494 tokens a second (pull request 7676).
    "rtx3090": Profile(
        tokens_per_s={1: 157.0, 2: 280.0, 4: 470.0, 8: 584.0},
        prefill_tokens_per_s=3500,  # assumption
        load_gb_per_s=3.0,  # assumption
        settle_s=1.0,  # assumption
        max_loaded_models=3,
    ),
    # NVIDIA RTX 4090, 7B and 8B Q4_0: llama.cpp pull requests 6646, 15131 and 7676 (whence the prefill, which
    # is rounded).
    "rtx4090": Profile(
        tokens_per_s={1: 146.0, 2: 279.0, 4: 552.0, 16: 1930.0},
        prefill_tokens_per_s=10_000,
        load_gb_per_s=4.0,  # assumption
        settle_s=1.0,  # assumption
        max_loaded_models=3,
    ),
    # A CPU of 16 cores, 7B Q4_0: llama.cpp issue 3478. Four slots write hardly more than one.
    "cpu16": Profile(
        tokens_per_s={1: 10.6, 2: 12.1, 3: 12.5, 4: 12.7},
        prefill_tokens_per_s=14,
        load_gb_per_s=2.0,  # assumption
        settle_s=0.5,  # assumption
        max_loaded_models=3,
    ),
}
"""The profiles by name."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """A profile's durations in seconds, every one multiplied by a scale."""

    profile: Profile
    time_scale: float = 1.0
    _steps_ms: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def settle_s(self) -> float:
        """Seconds until the memory of an unloaded model is free."""
        return self.profile.settle_s * self.time_scale

    def load_s(self, size_gb: float) -> float:
        """Seconds until a model of this size is in memory."""
        return size_gb / self.profile.load_gb_per_s * self.time_scale

    def read_s(self, prompt_tokens: int) -> float:
        """Seconds until this many tokens of prompts are read."""
        return prompt_tokens / self.profile.prefill_tokens_per_s * self.time_scale

    def steps_s(self, steps: float, slots: int, context: float) -> float:
        """Seconds of the next decoding steps.

        Args:
            steps: how many, also parts of one.
            slots: active slots, at least 1.
            context: tokens in all of them together; each step adds one a slot.
        """
        first_s, growth_s = self._rates(slots, context)
        return steps * first_s + growth_s * steps**2 / 2

    def steps_in(self, seconds: float, slots: int, context: float) -> float:
        """How many steps fit into a time above 0: the inverse of `steps_s`."""
        first_s, growth_s = self._rates(slots, context)
        if not growth_s:
            return seconds / first_s
        # The smaller root, in the form that loses no digits when the growth is small.
        return 2 * seconds / (first_s + math.sqrt(first_s**2 + 2 * growth_s * seconds))

    def _rates(self, slots: int, context: float) -> tuple[float, float]:
        """Seconds of a step now, and by how much each step is longer than the one before."""
        if slots not in self._steps_ms:
            self._steps_ms[slots] = _step_ms(self.profile, slots)
        per_token_s = self.profile.per_kilotoken_ms * 1e-6 * self.time_scale
        first_s = self._steps_ms[slots] * 1e-3 * self.time_scale + per_token_s * context
        return first_s, per_token_s * slots


def _step_ms(profile: Profile, slots: int) -> float:
    """Milliseconds of a step with so many active slots and nothing in their contexts."""
    known = sorted(profile.tokens_per_s)
    steps = [_measured_ms(profile, each) for each in known]
    if len(known) == 1:
        return steps[0]
    right = min(max(bisect_left(known, slots), 1), len(known) - 1)
    slope = (steps[right] - steps[right - 1]) / (known[right] - known[right - 1])
    return steps[right] + slope * (slots - known[right])


def _measured_ms(profile: Profile, slots: int) -> float:
    context = slots * profile.measured_context
    return 1000 * slots / profile.tokens_per_s[slots] - profile.per_kilotoken_ms * context / 1000


ReplyLength = Callable[[float], int]
"""From a number in [0, 1) to a count of tokens, at least 1."""

_EXPECTED = "reply tokens must be a whole number such as '64' or 'lognormal:mean=64,sigma=1.0'"


def parse_reply_length(spec: str) -> ReplyLength:
    """The distribution that `spec` names.

    Args:
        spec: `"64"`, or `"lognormal:mean=64,sigma=1.0"`; `mean` is the mean of the distribution in
            tokens (not of its logarithm), `sigma` the standard deviation of the logarithm.

    Raises:
        ValueError: the text names no distribution.
    """
    kind, _, rest = spec.strip().partition(":")
    if not rest and kind.isdecimal() and int(kind) >= 1:
        count = int(kind)
        return lambda _share: count
    try:
        values = {name.strip(): float(value) for name, value in (item.split("=") for item in rest.split(","))}
    except ValueError:
        raise ValueError(f"{_EXPECTED}, got {spec!r}") from None
    if kind != "lognormal" or set(values) != {"mean", "sigma"}:
        raise ValueError(f"{_EXPECTED}, got {spec!r}")
    mean, sigma = values["mean"], values["sigma"]
    if not (1 <= mean < math.inf and 0 <= sigma < math.inf):
        raise ValueError(f"{_EXPECTED} (mean at least 1, sigma at least 0), got {spec!r}")
    location = math.log(mean) - sigma**2 / 2
    quantile = NormalDist().inv_cdf

    def draw(share: float) -> int:
        inside = min(max(share, 1e-12), 1 - 1e-12)
        return max(1, round(math.exp(location + sigma * quantile(inside))))

    return draw
