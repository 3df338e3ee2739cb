"""Reads the parts of a persona file that say what is seen in a text: words, forms and marks of style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ollama_utils.simulator.personas.features import TERSE, Features, Form, Grammar
from ollama_utils.simulator.personas.lexicon import Lexicon, Word, tokenise
from ollama_utils.simulator.personas.markers import Marker, Swap, marker_pattern
from ollama_utils.simulator.personas.reader import PersonaError, Reader

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
