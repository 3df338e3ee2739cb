"""Reads the parts of a persona file that say what is answered, how it is worded, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping

from ollama_utils.simulator.personas.features import TERSE, Grammar
from ollama_utils.simulator.personas.judge import Judge, judge_fragments
from ollama_utils.simulator.personas.reader import PersonaError, Reader
from ollama_utils.simulator.personas.target import LABELS, Label, Target, Topic
from ollama_utils.simulator.personas.wording import Sentences, Wording

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
