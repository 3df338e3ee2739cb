"""The mutators that ask a model: each returns the prompt for one rewrite.

Every prompt has the same shape: the system prompt is an instruction that opens with what to do and
demands the rewrite alone; worked examples show it, as turns of the chat (both from
`examples.toml`); the query stands last, in a fence that it cannot close (`ollama_utils.prompts`). A
small model that is only told what to do answers the query instead; one that is shown it rewords.
What a model adds all the same, `cleaning.clean` removes; `form.not_a_rewording` recognises replies
that reword nothing.

Where a mutator has a `then`, the model's text is not yet the rewording: a rule puts it into a frame
together with the query, or the model is called again.

The fence of each turn has a boundary that depends on that turn alone. So the examples are the same
text for every query, and a server that caches prompts reads them once.
"""

from __future__ import annotations

import functools
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from mutators.form import not_a_rewording
from mutators.mutator import Mutator, by_model, by_rule
from ollama_utils.prompts import fenced
from ollama_utils.types import Prompt

_BESIDE = "\n\nIn other words: "
_MEANING = re.compile(
    r"\A[\"']?(?P<word>[^\"'=?\n]{1,40}?)[\"']? ?= ?(?P<meaning>[^=?\n]{3,120}?)\.?\Z"
)


def most_tokens(query: str) -> int:
    """Tokens that a rewording of a query may need: twice its own, and a sentence of context.

    A token is counted as three bytes of UTF-8, one Chinese character; English takes fewer tokens.
    """
    return 48 + len(query.encode()) * 2 // 3


def _prompt(
    name: str,
    query: str,
    other: str | None = None,
    *,
    asker: tuple[str, str] = ("", ""),
    reply: str = "rewritten query",
) -> Prompt:
    """A prompt for a query, or two; what `{asker}` stands for in the instruction and examples."""
    options: dict[str, Any] = {"num_predict": most_tokens(query + (other or ""))}
    if "\n" not in query.strip():
        options["stop"] = ["\n"]
    instruction = table()["instructions"][name].replace("{asker}", asker[0])
    return Prompt(
        system=f"{instruction} Do not answer the query. Reply with the {reply} alone.",
        examples=_examples(name, asker[1]),
        text=_turn(query, other),
        options=options,
    )


def _turn(query: str, other: str | None) -> str:
    texts = {"query": query} if other is None else {"query": query, "other": other}
    return "\n".join(fenced(texts).values())


@functools.cache
def _examples(name: str, asker: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_turn(row["query"], row.get("other")), row["rewording"].replace("{asker}", asker))
        for row in table()[name]
    )


@functools.cache
def table() -> Mapping[str, Any]:
    """The content of `examples.toml`."""
    file = resources.files("mutators").joinpath("examples.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _rewriter(name: str, askers: str = "") -> Mutator:
    """The mutator with the instruction and the examples of its name in `examples.toml`.

    The table `askers` has what `{asker}` may stand for, of which the seed draws one.
    """

    def reword(query: str, _earlier: Sequence[str], seed: int) -> Prompt:
        drawn = random.Random(seed).choice(list(table()[askers].items())) if askers else ("", "")
        return _prompt(name, query, asker=drawn)

    return Mutator(name=name, kind="model", function=reword, file=__file__)


paraphrase = _rewriter("paraphrase")
add_context = _rewriter("add_context", askers="purposes")
change_perspective = _rewriter("change_perspective", askers="viewpoints")
clarify_intent = _rewriter("clarify_intent")
shorten = _rewriter("shorten")
expand = _rewriter("expand")
simplify = _rewriter("simplify")
formalize = _rewriter("formalize")
passive_voice = _rewriter("passive_voice")
generate_similar = _rewriter("generate_similar")


@by_model
def crossover(query: str, earlier: Sequence[str], seed: int) -> Prompt:
    """Join the query with an earlier rewording of the same original.

    With no earlier rewording that differs from the query, the prompt is that of `paraphrase`.
    """
    others = [other for other in earlier if other != query]
    if not others:
        return paraphrase.prompt(query, earlier, seed)
    return _prompt("crossover", query, random.Random(seed).choice(others))


def _noting(name: str, note: str) -> Mutator:
    """The mutator that puts a note before the query: what a model says that a word of it means."""

    def ask(query: str, _earlier: Sequence[str], _seed: int) -> Prompt:
        return _prompt("define_terms", query, reply="word and its meaning")

    def put(said: str, earlier: Sequence[str], _seed: int) -> str:
        found, query = _MEANING.match(said), earlier[-1]
        if not found or found["word"].lower() not in query.lower():
            return query
        noted = note.format(**found.groupdict())
        return query if noted in query else f"{noted} {query}"

    then = Mutator(name=name, kind="rule", function=put, file=__file__)
    return Mutator(name=name, kind="model", function=ask, file=__file__, then=then)


define_terms = _noting("define_terms", 'By "{word}" I mean {meaning}.')
ignore_trigger = _noting(
    "ignore_trigger",
    'Do not mind the word "{word}", here it only means {meaning}, which is harmless.',
)


@by_rule
def _put_beside(rewording: str, earlier: Sequence[str], _seed: int) -> str:
    """The query and its rewording; a text that is no rewording alone, so that it is rejected."""
    query = earlier[-1].partition(_BESIDE)[0]
    if rewording == query or not_a_rewording(rewording, query):
        return rewording
    return f"{query}{_BESIDE}{rewording}"


def _paraphrase_bare(query: str, earlier: Sequence[str], seed: int) -> Prompt:
    return paraphrase.prompt(query.partition(_BESIDE)[0], earlier, seed)


keep_original = Mutator(
    name="keep_original",
    kind="model",
    function=_paraphrase_bare,
    file=__file__,
    then=_put_beside,
)
"""As rephrase-and-respond has it (Deng et al. 2023). Similarity hardly tells whether the paraphrase
asks for something else, for the query stands beside it."""
translate_back = replace(_rewriter("translate_back"), then=_rewriter("to_english"))
