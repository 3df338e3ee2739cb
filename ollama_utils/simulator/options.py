"""A request's `options`: checked as Ollama checks them, and what they say of a reply."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_utils.simulator.wire import ApiError, Body

_INTEGERS = "num_keep num_predict num_ctx num_batch num_gpu num_thread seed top_k repeat_last_n main_gpu"
_FLOATS = "temperature top_p min_p typical_p repeat_penalty presence_penalty frequency_penalty"
_KNOWN: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(_INTEGERS.split(), ((int, float), "integer")),
    **dict.fromkeys(_FLOATS.split(), ((int, float), "float32")),
    "use_mmap": ((bool,), "boolean"),
    "stop": ((list,), "array"),
}
"""The options that Ollama knows: the types of a value, and what its messages call them."""
_TEMPERATURE = 0.8


def check_options(options: Body | None) -> Body:
    """The options, when those that Ollama knows have its types; unknown ones are left alone.

    Raises:
        ApiError: 500, as Ollama answers.
    """
    for name, value in (options or {}).items():
        if value is None or name not in _KNOWN:
            continue
        kinds, wanted = _KNOWN[name]
        if type(value) not in kinds:
            raise ApiError(500, f'option "{name}" must be of type {wanted}')
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise ApiError(500, f'option "{name}" must be of an array of strings')
    return options or {}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The options that decide a reply; the others are checked and change nothing here."""

    temperature: float = _TEMPERATURE
    seed: int = -1
    num_predict: int = -1
    """The most tokens a reply may have; 0 or less is no limit."""
    num_ctx: int = 0
    """The tokens of prompt and reply that the model holds; 0 or less is as many as it can."""
    stop: tuple[str, ...] = ()
    """Texts before which a reply ends."""


def read_sampling(options: Body | None) -> Sampling:
    """What the options of a request say of its reply.

    Raises:
        ApiError: 500, an option has another type.
    """
    given = {name: value for name, value in check_options(options).items() if value is not None}
    return Sampling(
        temperature=float(given.get("temperature", _TEMPERATURE)),
        seed=int(given.get("seed", -1)),
        num_predict=int(given.get("num_predict", -1)),
        num_ctx=int(given.get("num_ctx", 0)),
        stop=tuple(filter(None, given.get("stop", ()))),
    )
