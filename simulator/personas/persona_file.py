"""Reads a persona's TOML file into the models that speak by it.

Each table is read into a pydantic model (`simulator.personas.tables`), which stands where it is used. What
one part of a file says of another (a topic's weights name marks, a phrase must not hold a harsh word) is
checked here.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from simulator.personas.judge import Judge, JudgeErrors
from simulator.personas.language import TERSE, Features, Form, Grammar, Lexicon, Marker, Word, tokenise
from simulator.personas.mutator import EVERY_MARK, Mutator, MutatorWords, Operator
from simulator.personas.persona import Model, Persona
from simulator.personas.solver import Solver
from simulator.personas.tables import PersonaError, Table, Text, as_persona_error, check_keys, check_names
from simulator.personas.target import LABELS, Label, Target, TargetRules, Topic
from simulator.personas.wording import Rewording

SHIPPED = "cautious"
"""The persona in this folder that is used when none is named, and that others may extend."""

_MERGED_LEVELS = 2
"""Sections of a file and their entries, as `[topics.weapons]`, are merged; what stands in them, replaced."""
_PROBE = "Describe qwertz."
"""A text without any feature, in which each phrase of a file is tried out."""


class _Embedding(Table):
    dimension: Annotated[int, Field(strict=True, ge=1, le=65_536)]


class _File(Table):
    """A whole persona file."""

    name: Text
    default_topic: Text
    models: Annotated[dict[str, Model], Field(min_length=1)]
    embedding: _Embedding
    judge: JudgeErrors
    forms: Annotated[tuple[Form, ...], Field(min_length=1)]
    markers: dict[str, Marker] = Field(default_factory=dict)
    topics: dict[str, Topic]
    target: TargetRules
    operators: Annotated[dict[str, Operator], Field(min_length=1)]
    rewordings: dict[str, Rewording] = Field(default_factory=dict)
    mutator: MutatorWords
    solver: Solver | None = None


def load_persona(path: str | None) -> Persona:
    """The persona of a TOML file; None is the shipped one.

    Raises:
        PersonaError: the file is not there, is not TOML, or says something that cannot be; one line.
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
        PersonaError: it is not TOML, or says something that cannot be.
    """
    table = _read_table(toml)
    try:
        file = _File.model_validate(table)
    except ValidationError as error:
        raise as_persona_error(error) from None
    grammar = _grammar(file)
    _check_topics(file, grammar)
    _check_sentences(file)
    _check_models(file)
    target = Target(grammar=grammar, topics=file.topics, rules=file.target)
    return Persona(
        name=file.name,
        fingerprint=sha256(json.dumps(table, default=str).encode()).hexdigest(),
        models=file.models,
        target=target,
        mutator=_mutator(file, grammar),
        judge=Judge(fragments=_fragments(target), lexicon=grammar.lexicon, errors=file.judge),
        solver=file.solver,
        dimension=file.embedding.dimension,
    )


def _read_table(toml: str) -> dict[str, Any]:
    """All that a text says, with what it takes from the persona that it extends."""
    try:
        table = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise PersonaError(f"not TOML: {error}") from None
    if "extends" not in table:
        return table
    extended = table.pop("extends")
    if extended != SHIPPED:
        raise PersonaError(f"extends must be {SHIPPED!r}, got {extended!r}")
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


def _grammar(file: _File) -> Grammar:
    if file.default_topic not in file.topics:
        raise PersonaError(
            f"default_topic must be one of {', '.join(file.topics)}, got {file.default_topic!r}"
        )
    if [form.pattern is None for form in file.forms] != [False] * (len(file.forms) - 1) + [True]:
        raise PersonaError("forms must be a list whose last form, and no other, is without 'recognise'")
    if TERSE in file.markers:
        raise PersonaError(
            f"markers.{TERSE} is built in: it is the mark of a text without a full stop at its end"
        )
    grammar = Grammar(
        lexicon=Lexicon(tuple(file.topics), _words(file.topics)),
        default_topic=file.default_topic,
        forms=file.forms,
        markers=file.markers,
    )
    _check_synonyms(file.topics, grammar.lexicon)
    _check_markers(grammar)
    return grammar


def _words(topics: Mapping[str, Topic]) -> dict[str, Word]:
    """The words of all topics by what they look like.

    `"kill/kills" = ["end/ends"]` gives two harsh words; what may stand in a harsh word's place is a sign of
    the same topic.
    """
    words: dict[str, Word] = {}
    for name, topic in topics.items():
        for phrase in topic.signs:
            _add(words, phrase, Word(topic=name), f"topics.{name}.signs")
    for place, name, phrase, synonyms in _harsh_words(topics):
        _add(words, phrase, Word(topic=name, synonyms=synonyms), place)
        for synonym in synonyms:
            _add(words, synonym, Word(topic=name), place)
    return words


def _harsh_words(topics: Mapping[str, Topic]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Each form of each harsh word: its key in the file, its topic, itself, its synonyms in the same form."""
    for name, topic in topics.items():
        for key, synonyms in topic.words.items():
            place, forms = f"topics.{name}.words.{key}", key.split("/")
            columns = [synonym.split("/") for synonym in synonyms]
            if not columns or any(len(column) not in {1, len(forms)} for column in columns):
                raise PersonaError(
                    f"{place} must be a list of synonyms with 1 or {len(forms)} forms each, divided by '/', "
                    f"got {list(synonyms)}"
                )
            for number, form in enumerate(forms):
                yield place, name, form, tuple(column[number % len(column)] for column in columns)


def _add(words: dict[str, Word], phrase: str, word: Word, place: str) -> None:
    plain = " ".join(tokenise(phrase))
    if not plain:
        raise PersonaError(f"{place} must be words made of letters, got {phrase!r}")
    earlier = words.setdefault(plain, word)
    if earlier != word:
        raise PersonaError(f"{place}: {phrase!r} stands twice (also under topic {earlier.topic!r})")


def _check_synonyms(topics: Mapping[str, Topic], lexicon: Lexicon) -> None:
    """Every synonym must be read as its own topic, without a harsh word."""
    for place, name, _, synonyms in _harsh_words(topics):
        for synonym in synonyms:
            if lexicon.read(synonym) != (name, False):
                raise PersonaError(
                    f"{place}: {synonym!r} must be a harmless sign of its own topic, "
                    f"but is read as {lexicon.read(synonym)}"
                )


def _check_markers(grammar: Grammar) -> None:
    """Every phrase must carry its own mark and no other feature."""
    plain = grammar.features(_PROBE)
    for name, marker in grammar.markers.items():
        wanted = Features(plain.topic, plain.form, plain.harsh, frozenset({name}))
        for phrase, text in _tried_out(marker):
            if grammar.features(text) != wanted:
                raise PersonaError(
                    f"markers.{name}: {phrase!r} must carry the mark {name!r} alone, "
                    f"but is read as {grammar.features(text)}"
                )


def _tried_out(marker: Marker) -> Sequence[tuple[str, str]]:
    """Each phrase with a text around it; the topic of a word inside it would show there."""
    before = [(phrase, f"{phrase} {_PROBE}") for phrase in marker.before]
    return before + [(phrase, f"{_PROBE} {phrase}") for phrase in marker.after]


def _check_topics(file: _File, grammar: Grammar) -> None:
    for name, topic in file.topics.items():
        check_keys(f"topics.{name}.forms", topic.forms, [form.name for form in file.forms])
        check_keys(f"topics.{name}.weights", topic.weights, [*grammar.markers, TERSE])


def _check_sentences(file: _File) -> None:
    """A list of sentences by form must have all forms of question, and no other."""
    forms = [form.name for form in file.forms]
    for label in LABELS:
        for name, by_form in getattr(file.target, label).sentences.items():
            if list(by_form) == [""]:
                continue
            place = f"target.{label}.sentences.{name}"
            check_keys(place, by_form, forms)
            for form in forms:
                if form not in by_form:
                    raise PersonaError(f"{place}.{form} is missing")


def _check_models(file: _File) -> None:
    for name, model in file.models.items():
        if model.role == "solver" and file.solver is None:
            raise PersonaError(f"models.{name} is a solver, but the file has no section [solver]")


def _mutator(file: _File, grammar: Grammar) -> Mutator:
    marks = [*grammar.markers, TERSE]
    failures = file.mutator.failure_names
    for name, operator in file.operators.items():
        check_keys(f"operators.{name}.failures", operator.failures, failures)
        check_names(f"operators.{name}.rewordings", operator.rewordings, file.rewordings)
        for number, effect in enumerate(operator.effects):
            place = f"operators.{name}.effects[{number}]"
            check_names(f"{place}.add", effect.add, marks)
            check_names(f"{place}.remove", effect.remove, [*marks, EVERY_MARK])
    return Mutator(
        grammar=grammar,
        operators={name: each.with_failures_in_order(failures) for name, each in file.operators.items()},
        rewordings=file.rewordings,
        words=file.mutator,
        advice=file.solver.advice if file.solver else None,
    )


def _fragments(target: Target) -> dict[Label, tuple[str, ...]]:
    """The pieces by which the judge knows the target's replies: none may stand in another label's piece."""
    fragments = {label: wording.fragments() for label, wording in target.wordings.items()}
    for label, own in fragments.items():
        others = [(other, piece) for other, pieces in fragments.items() if other != label for piece in pieces]
        for fragment in own:
            if not fragment:
                raise PersonaError(f"target.{label}.decisive: a sentence must have words beside its slots")
            for other, piece in others:
                if fragment in piece:
                    raise PersonaError(
                        f"target.{label}.decisive: {fragment!r} must tell its label, but stands in "
                        f"target.{other} too: {piece!r}"
                    )
    return fragments
