"""Reads a persona file into the models that speak by it.

Reads a persona's TOML tables key by key; whatever is wrong becomes one line that names the key.

Reads the parts of a persona file that say what is seen in a text: words, forms and marks of style.

Reads the parts of a persona file that say how queries are rewritten.

Reads the part of a persona file that says how problems are solved.

Reads the parts of a persona file that say what is answered, how it is worded, and how it is judged.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from simulator.personas.advice import Advice
from simulator.personas.judge import Judge, judge_fragments
from simulator.personas.language import (
    TERSE,
    Features,
    Form,
    Grammar,
    Lexicon,
    Marker,
    Swap,
    Word,
    marker_pattern,
    tokenise,
)
from simulator.personas.mutator import EVERY_MARK, Effect, Mutator, MutatorWords, Operator
from simulator.personas.persona import ABILITIES, ROLES, Model, Persona
from simulator.personas.solver import Kind, Solver
from simulator.personas.solving import KINDS
from simulator.personas.target import LABELS, Label, Target, Topic
from simulator.personas.wording import Rewording, Rule, Sentences, Wording


class PersonaError(ValueError):
    """A persona file cannot be used: one line names the key, what was expected and what came."""


class Reader:
    """One table of the file. It remembers which keys were asked for, and `finish` complains of the others.

    Args:
        table: the table as TOML gave it.
        where: its place in the file, for messages, such as `topics.weapons`.
    """

    def __init__(self, table: Mapping[str, Any], where: str = "") -> None:
        self._table = table
        self._asked: set[str] = set()
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def fail(self, key: str, expected: str) -> PersonaError:
        """The error for a key, to be raised."""
        came = repr(self._table[key]) if key in self._table else "nothing"
        return PersonaError(f"{self._place(key)} must be {expected}, got {came}")

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        value = self._get(key, default)
        if not isinstance(value, str) or not value:
            raise self.fail(key, "a text")
        return value

    def choice(self, key: str, options: tuple[str, ...], default: str | None = None) -> str:
        """One of the options."""
        value = self._get(key, default)
        if value not in options:
            raise self.fail(key, f"one of {', '.join(options)}")
        return str(value)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A number from `low` to `high`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.fail(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of texts."""
        value = self._get(key, default)
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
            raise self.fail(key, "a list of texts")
        return tuple(value)

    def replacements(self, key: str) -> tuple[str, ...]:
        """A list of at least one text, which may be empty."""
        value = self._get(key, None)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "a list of at least one text")
        return tuple(value)

    def pattern(self, key: str) -> re.Pattern[str]:
        """A regular expression that matches no empty text; capitals do not count."""
        return self._compiled(key, self.text(key))

    def patterns(self, key: str, default: tuple[str, ...] | None = None) -> re.Pattern[str] | None:
        """A list of regular expressions as one; None for an empty list."""
        found = self.texts(key, default)
        for each in found:
            self._compiled(key, each)
        return self._compiled(key, "|".join(f"(?:{each})" for each in found)) if found else None

    def table(self, key: str) -> Reader:
        """A table; an absent one is empty."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.fail(key, "a table")
        return Reader(value, self._place(key))

    def is_table(self, key: str) -> bool:
        """Whether the key holds a table."""
        return isinstance(self._table.get(key), dict)

    def tables(self) -> Iterator[tuple[str, Reader]]:
        """Every value of this table as a table, by its key."""
        for key in self._table:
            yield key, self.table(key)

    def items(self, key: str) -> list[Reader]:
        """A list of tables that is not empty."""
        value = self._get(key, None)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.fail(key, "a list of tables")
        return [Reader(item, f"{self._place(key)}[{place}]") for place, item in enumerate(value)]

    def keys(self) -> tuple[str, ...]:
        """All keys of the table."""
        return tuple(self._table)

    def expect(self, keys: tuple[str, ...]) -> None:
        """Complain at once of a key that is not among these.

        Raises:
            PersonaError: there is one; the message gives the nearest known key.
        """
        self._asked.update(keys)
        self.finish()

    def finish(self) -> None:
        """Complain of a key that nobody asked for.

        Raises:
            PersonaError: there is one; the message gives the nearest known key.
        """
        for key in self._table:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1)
                hint = (
                    f"did you mean {near[0]!r}?"
                    if near
                    else f"expected one of {', '.join(sorted(self._asked))}"
                )
                raise PersonaError(f"{self._place(key)} is not known: {hint}")

    def _get(self, key: str, default: object) -> Any:  # noqa: ANN401 - TOML holds anything
        self._asked.add(key)
        return self._table.get(key, default)

    def _compiled(self, key: str, pattern: str) -> re.Pattern[str]:
        try:
            compiled = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise self.fail(key, f"made of regular expressions ({pattern!r}: {error})") from None
        if compiled.search(""):
            raise self.fail(key, f"made of regular expressions that match no empty text ({pattern!r} does)")
        return compiled

    def _place(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key


_PROBE = "Describe qwertz."
"""A text without any feature, in which each phrase of a file is tried out."""


def read_grammar(file: Reader) -> Grammar:
    """The grammar of a persona file.

    Raises:
        PersonaError: a key is missing, of another type, or contradicts another one.
    """
    topics = file.table("topics")
    lexicon = Lexicon(topics.keys(), read_words(topics))
    grammar = Grammar(
        lexicon=lexicon,
        default_topic=file.choice("default_topic", topics.keys()),
        forms=[_read_form(item) for item in file.items("forms")],
        markers=[_read_marker(name, table) for name, table in file.table("markers").tables()],
    )
    _check_forms(file, grammar)
    _check_words(topics, lexicon)
    _check_markers(file.table("markers"), grammar)
    return grammar


def read_words(topics: Reader) -> dict[str, Word]:
    """The words of all topics by what they look like.

    `"kill/kills" = ["end/ends"]` gives two harsh words; what may stand in a harsh word's place is a sign of
    the same topic.
    """
    words: dict[str, Word] = {}
    for topic, table in topics.tables():
        for phrase in table.texts("signs", ()):
            _add(words, phrase, Word(topic=topic), table, "signs")
    for topic, table in topics.tables():
        entries = table.table("words")
        for key in entries.keys():  # noqa: SIM118 - a Reader is no dict
            for phrase, synonyms in _forms(entries, key):
                _add(words, phrase, Word(topic=topic, synonyms=synonyms), entries, key)
                for synonym in synonyms:
                    _add(words, synonym, Word(topic=topic), entries, key)
    return words


def _forms(entries: Reader, key: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each form of a harsh word with its synonyms in the same form."""
    forms = key.split("/")
    columns = [synonym.split("/") for synonym in entries.texts(key)]
    if not columns or any(len(column) not in {1, len(forms)} for column in columns):
        raise entries.fail(key, f"a list of synonyms with 1 or {len(forms)} forms each, divided by '/'")
    for place, form in enumerate(forms):
        yield form, tuple(column[place % len(column)] for column in columns)


def _add(words: dict[str, Word], phrase: str, word: Word, table: Reader, key: str) -> None:
    plain = " ".join(tokenise(phrase))
    if not plain:
        raise table.fail(key, f"words made of letters ({phrase!r} has none)")
    earlier = words.setdefault(plain, word)
    if earlier != word:
        raise PersonaError(
            f"{table.where}.{key}: {phrase!r} stands twice (also under topic {earlier.topic!r})"
        )


def _read_form(item: Reader) -> Form:
    form = Form(name=item.text("name"), pattern=item.patterns("recognise", ()))
    item.finish()
    return form


def _read_marker(name: str, table: Reader) -> Marker:
    if name == TERSE:
        raise PersonaError(
            f"{table.where} is built in: it is the mark of a text without a full stop at its end"
        )
    before, after = table.texts("before", ()), table.texts("after", ())
    table.patterns("recognise", ())
    natural = table.texts("recognise", ())
    swap = table.table("swap") if "swap" in table else None
    table.finish()
    return Marker(
        name=name,
        before=before,
        after=after,
        pattern=marker_pattern(before + after, natural),
        swap=_read_swap(swap) if swap else None,
    )


def _read_swap(table: Reader) -> Swap:
    swap = Swap(pattern=table.pattern("from"), to=table.text("to"), back=table.text("back"))
    table.finish()
    return swap


def _check_forms(file: Reader, grammar: Grammar) -> None:
    if grammar.forms[-1].pattern is not None or any(form.pattern is None for form in grammar.forms[:-1]):
        raise file.fail("forms", "a list whose last form, and no other, is without 'recognise'")


def _check_words(topics: Reader, lexicon: Lexicon) -> None:
    """Every synonym must be read as its own topic, without a harsh word."""
    for topic, table in topics.tables():
        entries = table.table("words")
        for key in entries.keys():  # noqa: SIM118 - a Reader is no dict
            for _, synonyms in _forms(entries, key):
                for synonym in synonyms:
                    if lexicon.read(synonym) != (topic, False):
                        raise PersonaError(
                            f"{entries.where}.{key}: {synonym!r} must be a harmless sign of its own topic, "
                            f"but is read as {lexicon.read(synonym)}"
                        )


def _check_markers(tables: Reader, grammar: Grammar) -> None:
    """Every phrase must carry its own mark and no other feature."""
    for name, marker in grammar.markers.items():
        if not marker.before + marker.after:
            raise tables.table(name).fail("before", "a list of texts (or 'after')")
        for phrase, text in _tried_out(marker):
            plain = grammar.features(_PROBE)
            wanted = Features(plain.topic, plain.form, plain.harsh, frozenset({name}))
            if grammar.features(text) != wanted:
                raise PersonaError(
                    f"{tables.where}.{name}: {phrase!r} must carry the mark {name!r} alone, "
                    f"but is read as {grammar.features(text)}"
                )


def _tried_out(marker: Marker) -> Sequence[tuple[str, str]]:
    """Each phrase with a text around it; the topic of a word inside it would show there."""
    before = [(phrase, f"{phrase} {_PROBE}") for phrase in marker.before]
    return before + [(phrase, f"{_PROBE} {phrase}") for phrase in marker.after]


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


_MOST_CUES = 100


def read_solver(file: Reader) -> Solver | None:
    """The solver of a persona file; None for a file without the section.

    Raises:
        PersonaError: a key is missing, of another type, or names something that is not there.
    """
    if "solver" not in file:
        return None
    table = file.table("solver")
    cues = _read_cues(table.table("cues"))
    kinds = table.table("kinds")
    solver = Solver(
        cues=cues,
        kinds={name: _read_kind(kinds.table(name), tuple(cues)) for name in KINDS},
        clutter=table.number("clutter", 0, 1),
        free_cues=int(table.number("free_cues", 0, _MOST_CUES)),
        example=table.number("example", -1, 1),
        replies=table.texts("replies"),
        unknown=table.text("unknown"),
        advice=_read_advice(table.table("advice")),
    )
    kinds.finish()
    table.finish()
    if not solver.replies or not all("{answer}" in reply for reply in solver.replies):
        raise table.fail("replies", "a list of texts with {answer}")
    return solver


def _read_cues(table: Reader) -> dict[str, re.Pattern[str]]:
    found = {name: table.patterns(name) for name in table.keys()}  # noqa: SIM118 - a Reader is no dict
    return {name: pattern for name, pattern in found.items() if pattern is not None}


def _read_kind(table: Reader, cues: tuple[str, ...]) -> Kind:
    weights = table.table("weights")
    kind = Kind(
        base=table.number("base", -1, 1),
        weights={name: weights.number(name, -1, 1, 0.0) for name in cues},
    )
    weights.finish()
    table.finish()
    return kind


def _read_advice(table: Reader) -> Advice:
    advice = Advice(general=table.texts("general"), special=table.texts("special"))
    table.finish()
    for key in ("general", "special"):
        if not getattr(advice, key):
            raise table.fail(key, "a list of at least one text")
    return advice


_MOST_POINTS = 1000.0
_THOUGHTS = ("The question is about {subject}.", "What counts in it is the word {word}.")


def read_target(file: Reader, grammar: Grammar) -> Target:
    """The target of a persona file.

    Raises:
        PersonaError: a key is missing, of another type, or names something that is not there.
    """
    table = file.table("target")
    partly_from = table.number("partly_from", -_MOST_POINTS, _MOST_POINTS)
    target = Target(
        grammar=grammar,
        topics={name: _read_topic(name, item, grammar) for name, item in file.table("topics").tables()},
        partly_from=partly_from,
        refused_from=table.number("refused_from", partly_from, _MOST_POINTS),
        wordings={label: _read_wording(table.table(label), grammar) for label in LABELS},
        leads=table.patterns("leads", ()),
        thoughts=table.texts("thoughts", _THOUGHTS),
    )
    table.finish()
    return target


def _read_topic(name: str, table: Reader, grammar: Grammar) -> Topic:
    forms = tuple(form.name for form in grammar.forms)
    topic = Topic(
        name=name,
        base=table.number("base", -_MOST_POINTS, _MOST_POINTS),
        harsh=table.number("harsh", -_MOST_POINTS, _MOST_POINTS, 0.0),
        forms=_read_points(table.table("forms"), forms),
        weights=_read_points(table.table("weights"), (*grammar.markers, TERSE)),
    )
    table.texts("signs", ())
    table.table("words")
    table.finish()
    return topic


def _read_points(table: Reader, names: tuple[str, ...]) -> dict[str, float]:
    points = {name: table.number(name, -_MOST_POINTS, _MOST_POINTS, 0.0) for name in names}
    table.finish()
    return points


def _read_wording(table: Reader, grammar: Grammar) -> Wording:
    lists = table.table("sentences")
    sentences = {name: _read_sentences(lists, name, grammar) for name in lists.keys()}  # noqa: SIM118 - as above
    names = tuple(sentences)
    patterns = tuple(tuple(row.split()) for row in table.texts("patterns"))
    decisive = table.texts("decisive")
    wording = Wording(patterns=patterns, sentences=sentences, decisive=decisive)
    if not patterns or not {name for row in patterns for name in row} <= set(names):
        raise table.fail("patterns", f"a list of rows of the lists' names ({', '.join(names)})")
    if not decisive or not set(decisive) <= set(names):
        raise table.fail("decisive", f"a list of lists' names ({', '.join(names)})")
    table.finish()
    return wording


def _read_sentences(lists: Reader, name: str, grammar: Grammar) -> Sentences:
    """The sentences of a list: one list for all forms of question, or a table with one for each."""
    if not lists.is_table(name):
        sentences = {"": lists.texts(name)}
    else:
        table = lists.table(name)
        sentences = {form.name: table.texts(form.name) for form in grammar.forms}
        table.finish()
    if not all(sentences.values()):
        raise lists.fail(name, "lists with at least one text each")
    return sentences


def read_judge(table: Reader, grammar: Grammar, target: Target) -> Judge:
    """The judge of a persona file, who knows the target's wording.

    Raises:
        PersonaError: a rate is no rate, or a sentence that tells one label stands in another's too.
    """
    judge = Judge(
        fragments=judge_fragments(target.wordings),
        lexicon=grammar.lexicon,
        error_rate=table.number("error_rate", 0, 1),
        intent_error_rate=table.number("intent_error_rate", 0, 1),
    )
    table.finish()
    _check_fragments(judge.fragments)
    return judge


def _check_fragments(fragments: Mapping[Label, tuple[str, ...]]) -> None:
    """No sentence that tells one label may contain one that tells another."""
    for label, own in fragments.items():
        others = [(other, part) for other, parts in fragments.items() if other != label for part in parts]
        for fragment in own:
            if not fragment:
                raise PersonaError(f"target.{label}.decisive: a sentence must have words beside its slots")
            for other, part in others:
                if fragment in part:
                    raise PersonaError(
                        f"target.{label}.decisive: {fragment!r} must tell its label, but stands in "
                        f"target.{other} too: {part!r}"
                    )


SHIPPED = "cautious"
"""The persona in this folder that is used when none is named, and that others may extend."""

_MERGED_LEVELS = 2
"""Sections of a file and their entries, as `[topics.weapons]`, are merged; what stands in them, replaced."""
_MOST_NUMBERS = 65_536
_PARTS = (
    "name",
    "default_topic",
    "models",
    "embedding",
    "judge",
    "forms",
    "markers",
    "topics",
    "target",
    "operators",
    "rewordings",
    "mutator",
    "solver",
)


def load_persona(path: str | None) -> Persona:
    """The persona of a TOML file; None is the shipped one.

    Raises:
        PersonaError: the file is not there, is no TOML, or says something that cannot be; one line.
    """
    if path is None:
        return parse_persona(_shipped())
    try:
        return parse_persona(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PersonaError(f"persona file {path!r} cannot be read: {error}") from None
    except PersonaError as error:
        raise PersonaError(f"persona file {path!r}: {error}") from None


def parse_persona(toml: str) -> Persona:
    """The persona of a TOML text.

    With `extends` the text says only what differs from the shipped persona: sections and their entries are
    merged key by key, and any other value takes the place of the shipped one's.

    Raises:
        PersonaError: it is no TOML, or says something that cannot be.
    """
    table = _read_table(toml)
    file = Reader(table)
    file.expect(_PARTS)
    grammar = read_grammar(file)
    target = read_target(file, grammar)
    solver = read_solver(file)
    return Persona(
        name=file.text("name"),
        fingerprint=sha256(json.dumps(table, default=str).encode()).hexdigest(),
        models=_read_models(file.table("models"), solves=solver is not None),
        target=target,
        mutator=read_mutator(file, grammar, solver.advice if solver else None),
        judge=read_judge(file.table("judge"), grammar, target),
        solver=solver,
        dimension=_read_dimension(file.table("embedding")),
    )


def _read_table(toml: str) -> dict[str, Any]:
    """All that a text says, with what it takes from the persona that it extends."""
    try:
        table: dict[str, Any] = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise PersonaError(f"no TOML: {error}") from None
    if "extends" not in table:
        return table
    Reader(table).choice("extends", (SHIPPED,))
    del table["extends"]
    return _merged(tomllib.loads(_shipped()), table, _MERGED_LEVELS)


def _shipped() -> str:
    return resources.files(__package__).joinpath(f"{SHIPPED}.toml").read_text(encoding="utf-8")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any], levels: int) -> dict[str, Any]:
    """Both tables in one, key by key down to `levels` levels under this one; `above` decides."""
    merged = dict(below)
    for key, value in above.items():
        both_tables = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merged(below[key], value, levels - 1) if levels and both_tables else value
    return merged


def _read_models(table: Reader, *, solves: bool) -> dict[str, Model]:
    models = {name: _read_model(table, name) for name in table.keys()}  # noqa: SIM118 - a Reader is no dict
    if not models:
        raise PersonaError(
            f"{table.where} must name at least one model with its role, one of {', '.join(ROLES)}"
        )
    for name, model in models.items():
        if model.role == "solver" and not solves:
            raise PersonaError(f"{table.where}.{name} is a solver, but the file has no section [solver]")
    return models


def _read_model(table: Reader, name: str) -> Model:
    """A model: its role, or a table with its role and what else it can do."""
    if not table.is_table(name):
        return Model(role=table.choice(name, ROLES))
    entry = table.table(name)
    role = entry.choice("role", ROLES)
    skill = entry.number("skill", -1, 1, 0.0) if role == "solver" else 0.0
    model = Model(role=role, abilities=entry.texts("abilities", ()), skill=skill)
    able = ABILITIES if model.role != "embedding" else ()
    if not set(model.abilities) <= set(able):
        raise entry.fail(
            "abilities", f"a list of abilities for the role {model.role} ({', '.join(able) or 'none'})"
        )
    entry.finish()
    return model


def _read_dimension(table: Reader) -> int:
    dimension = table.number("dimension", 1, _MOST_NUMBERS)
    table.finish()
    return int(dimension)
