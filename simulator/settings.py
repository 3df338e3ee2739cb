"""The settings of a simulator.

Commands inherit `SimulatedServer` and read its annotations at run time, so these are types here and
not strings.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

FORMAT = "simulator"
"""What `/api/tags` calls the format of every model; a real server has files of another."""
WORLDS = ("cautious", "drawn")
"""The bundled worlds: in `cautious` constants may be tuned; in `drawn`, which is chance, never."""

PROBLEMS = Path(__file__).with_name("problems.jsonl")
"""The problems that simulated solvers know: those of the bundled task."""


@dataclass(frozen=True, kw_only=True)
class SimulatedServer:
    """What a simulated server is like, wherever it listens."""

    slots: int = 1
    """Calls one model serves at once (OLLAMA_NUM_PARALLEL)."""
    world: str = "cautious"
    """What the simulated models know: `cautious`, `drawn`, or a TOML file of your own."""
    reply_tokens: str = "64"
    """Reply length: a number, or `lognormal:mean=64,sigma=1.0`."""
    time_scale: float = 1.0
    """1 is 4 ms a token; 0.1 is ten times faster, 0 answers at once."""
    load_s: float = 0.0
    """Seconds that a model takes to load, at a time scale of 1."""
    max_loaded_models: int = 0
    """Models in memory at once (OLLAMA_MAX_LOADED_MODELS); 0 sets no limit."""
    faults: str | None = None
    """A JSON file of faults, such as [{"kind": "status", "status": 500, "rate": 0.1}]."""


@dataclass(frozen=True, kw_only=True)
class Settings(SimulatedServer):
    """All settings of a server; a bad value raises ValueError and says what was expected."""

    num_ctx: int = 4096
    """Tokens of prompt and reply that a model holds at most."""
    seed: int = 0
    """Goes into every draw: another seed is another server."""
    port: int = 0
    """The port to listen on; 0 lets the system choose."""
    bind: str = "127.0.0.1"
    """The address to listen on."""

    def __post_init__(self) -> None:
        bounds = {"slots": (1, 65_536), "num_ctx": (1, 2**31)}
        others = dict.fromkeys(("time_scale", "load_s", "max_loaded_models"), (0, 10**9))
        for name, (least, most) in {**bounds, **others}.items():
            if not least <= getattr(self, name) <= most:
                got = getattr(self, name)
                raise ValueError(f"{name} must be from {least} to {most:,}, got {got!r}")
        reply_length(self.reply_tokens)


def reply_length(spec: str) -> Callable[[float], int]:
    """The distribution of reply lengths: from a share in [0, 1) to a count of tokens.

    Args:
        spec: `"64"`, or `"lognormal:mean=64,sigma=1.0"`; `mean` is the mean of the distribution in
            tokens (not of its logarithm), `sigma` the standard deviation of the logarithm.

    Raises:
        ValueError: the text names no distribution.
    """
    kind, _, rest = spec.strip().partition(":")
    if not rest and kind.isdecimal() and int(kind) >= 1:
        return lambda _share: int(kind)
    try:
        parts = dict(each.split("=") for each in rest.replace(" ", "").split(","))
        mean, sigma = float(parts.pop("mean")), float(parts.pop("sigma"))
    except (ValueError, KeyError):
        kind, parts, mean, sigma = "", {}, 0.0, 0.0
    if kind != "lognormal" or parts or not (1 <= mean < math.inf and 0 <= sigma < math.inf):
        expected = "'64' or 'lognormal:mean=64,sigma=1.0' (mean from 1)"
        raise ValueError(f"reply tokens must be such as {expected}, got {spec!r}")

    def draw(share: float) -> int:
        deviation = NormalDist().inv_cdf(min(max(share, 1e-12), 1 - 1e-12))
        return max(1, round(math.exp(math.log(mean) - sigma**2 / 2 + sigma * deviation)))

    return draw
