"""Reads the parts of a persona file that say how queries are rewritten."""

from __future__ import annotations

from ollama_utils.simulator.personas.advice import Advice
from ollama_utils.simulator.personas.features import TERSE, Grammar
from ollama_utils.simulator.personas.mutator import Mutator, MutatorWords
from ollama_utils.simulator.personas.operators import EVERY_MARK, Effect, Operator
from ollama_utils.simulator.personas.reader import PersonaError, Reader
from ollama_utils.simulator.personas.rewording import Rewording, Rule

_EXACT = 1e-9


def read_mutator(file: Reader, grammar: Grammar, advice: Advice | None) -> Mutator:
    """The mutator of a persona file, who knows this advice for a solver.

    Raises:
        PersonaError: a key is missing, of another type, or names something that is not there.
    """
    table = file.table("mutator")
    rewordings = {name: _read_rewording(item) for name, item in file.table("rewordings").tables()}
    failing = table.table("failures")
    failures = {name: failing.texts(name) for name in failing.keys()}  # noqa: SIM118 - a Reader is no dict
    operators = file.table("operators")
    mutator = Mutator(
        grammar=grammar,
        operators={
            name: _read_operator(name, item, grammar, tuple(failures), tuple(rewordings))
            for name, item in operators.tables()
        },
        rewordings=rewordings,
        openers=frozenset(word.lower() for word in table.texts("openers")),
        words=MutatorWords(
            failures=failures,
            dress_rate=table.number("dress_rate", 0, 1),
            dresses=table.texts("dresses"),
        ),
        advice=advice,
    )
    table.finish()
    if not mutator.operators:
        raise PersonaError("operators must name at least one operator")
    return mutator


def _read_operator(
    name: str, table: Reader, grammar: Grammar, failures: tuple[str, ...], rewordings: tuple[str, ...]
) -> Operator:
    effects = tuple(_read_effect(item, grammar) for item in table.items("effects"))
    operator = Operator(
        name=name,
        cue=table.text("cue").lower(),
        failures=_read_failures(table.table("failures"), failures),
        effects=effects,
        rewordings=table.texts("rewordings", ()),
    )
    table.finish()
    if abs(sum(effect.chance for effect in effects) - 1) > _EXACT:
        raise PersonaError(f"{table.where}.effects must have chances that add up to 1")
    if not set(operator.rewordings) <= set(rewordings):
        raise table.fail("rewordings", f"a list of names of rewordings ({', '.join(rewordings)})")
    return operator


def _read_failures(table: Reader, names: tuple[str, ...]) -> dict[str, float]:
    """The rate of each failure; `unchanged` gives the query back and needs no texts."""
    rates = {name: table.number(name, 0, 1, 0.0) for name in ("unchanged", *names)}
    table.finish()
    if sum(rates.values()) >= 1:
        raise PersonaError(f"{table.where} must add up to less than 1")
    return rates


def _read_effect(table: Reader, grammar: Grammar) -> Effect:
    marks = (*grammar.markers, TERSE)
    effect = Effect(
        chance=table.number("chance", 0, 1),
        add=table.texts("add", ()),
        remove=frozenset(table.texts("remove", ())),
        soften=table.flag("soften", default=False),
    )
    if not set(effect.add) <= set(marks):
        raise table.fail("add", f"a list of marks ({', '.join(marks)})")
    if not effect.remove <= {*marks, EVERY_MARK}:
        raise table.fail("remove", f"a list of marks ({', '.join(marks)}), or '{EVERY_MARK}' for all")
    table.finish()
    return effect


def _read_rewording(table: Reader) -> Rewording:
    rules = tuple(_read_rule(item) for item in table.items("rules"))
    rewording = Rewording(rules=rules, every=table.flag("every", default=False))
    table.finish()
    return rewording


def _read_rule(table: Reader) -> Rule:
    rule = Rule(pattern=table.pattern("from"), replacements=table.replacements("to"))
    table.finish()
    return rule
