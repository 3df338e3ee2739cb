"""The TOML file of a world: its tables, and how one is read.

A file says all, or with `extends = "cautious"` only what differs: its tables, and the tables in
them, are merged into those of the other world; any other value takes the place of the other's.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from simulator.settings import WORLDS

Label = Literal["answered", "partly_refused", "refused"]
LABELS: tuple[Label, ...] = get_args(Label)
TERSE = "terse"
"""The mark of a text without a full stop or a question mark at its end, as in a search box."""


def _compiled(patterns: object) -> re.Pattern[str]:
    if not isinstance(patterns, list) or not patterns:
        raise ValueError("expected a list of regular expressions")
    try:
        compiled = re.compile("|".join(f"(?:{each})" for each in patterns), re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"expected regular expressions: {error}") from None
    if compiled.search(""):
        raise ValueError("expected regular expressions that match no empty text")
    return compiled


def _divided(text: object) -> object:
    if not isinstance(text, str):
        return text
    return [part for each in text.split(",") if (part := " ".join(each.split()))]


Patterns = Annotated[re.Pattern[str], BeforeValidator(_compiled)]
"""A list of regular expressions as one; capitals do not count."""
Words = Annotated[tuple[str, ...], BeforeValidator(_divided)]
"""A text of words and phrases, divided by commas."""
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], Field(min_length=1)]


class Table(BaseModel):
    """A table of the file, whose keys `cautious.toml` explains; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Model(Table):
    """One simulated model; one that plays `all` is target, mutator or judge by its prompt."""

    role: Literal["target", "mutator", "judge", "all", "solver", "embedding"]
    thinks: bool = False
    skill: float = 0.0


class Form(Table):
    """A kind of question; the last one takes what is left."""

    name: str
    recognise: Patterns | None = None


class Mark(Table):
    """One mark of style: the phrases that a mutation adds, and what people write to that effect."""

    before: tuple[Text, ...] = ()
    after: tuple[Text, ...] = ()
    recognise: Patterns


class Topic(Table):
    """A topic's neutral and harsh words, and how suspicious the target finds it, in points."""

    base: float
    harsh: float = 0.0
    forms: dict[str, float] = Field(default_factory=dict)
    weights: dict[str, float] = Field(default_factory=dict)
    signs: Words = ()
    words: Words = ()


class Wording(Table):
    """How one kind of reply is worded: a pattern names lists, a sentence of each makes a reply.

    Those of the list `decisive` tell this kind of reply from the others.
    """

    patterns: Texts
    decisive: str
    sentences: dict[str, Texts | dict[str, Texts]]
    """By list; or by list and form of question."""


class Target(Table):
    """From which suspicion the target refuses, and how it words its replies."""

    partly_from: float
    refused_from: float
    leads: Patterns
    thoughts: str
    answered: Wording
    partly_refused: Wording
    refused: Wording


class Judge(Table):
    """The shares of judgements with a wrong label, and of those that are wrong on the intent."""

    error_rate: Share
    intent_error_rate: Share


@dataclass(frozen=True, slots=True)
class Features:
    """Everything about a text that decides what is answered and what a mutation does."""

    topic: str
    form: str
    harsh: bool
    """Whether a harsh word stands in it that is not in quotation marks."""
    marks: frozenset[str]


class Operator(Table):
    """A way to reword, known by the first words of an instruction, in small letters."""

    cue: str
    failures: tuple[Share, Share, Share, Share] = (0, 0, 0, 0)
    """The shares that come to nothing: unchanged, an apology, chatter, another question."""
    soften: Share = 0.0
    add: str = ""
    remove: Words = ()
    reword: str = ""

    def applied(self, features: Features, *, soften: bool) -> Features:
        """The features of the reworded text. A phrase makes a sentence: it takes `terse` away."""
        stripped = features.marks if "*" in self.remove else self.remove
        marks = features.marks.difference(stripped)
        if self.add and self.add not in marks:
            marks = (marks - {TERSE}) | {self.add}
        return replace(features, harsh=features.harsh and not soften, marks=marks)

    def outcomes(self, features: Features) -> Iterator[tuple[float, Features]]:
        """What becomes of a text with these features, each with its probability."""
        working = 1 - sum(self.failures)
        yield working * self.soften, self.applied(features, soften=True)
        yield working * (1 - self.soften), self.applied(features, soften=False)
        yield 1 - working, features


class Mutator(Table):
    """How the mutator rewords, and what it says around a rewording or in its place."""

    dress_rate: Share
    """The share of rewordings that come with words around them."""
    dresses: Texts
    apology: Texts
    chatter: Texts
    stray: Texts
    operators: dict[str, Operator]
    rewordings: dict[str, tuple[Texts, ...]]


class Solver(Table):
    """When a solver is right, and what advice the mutator knows."""

    clutter: float
    free_cues: int
    example: float
    replies: Texts
    unknown: str
    cues: dict[str, Patterns]
    kinds: dict[str, dict[str, float]]
    general: Texts
    special: dict[str, Texts]


class WorldFile(Table):
    """A whole file. Marks are stripped in their order; of several topics the first counts."""

    name: str
    default_topic: str
    """The topic of a text without a word of any."""
    dimension: Annotated[int, Field(ge=1, le=65_536)]
    """Numbers in an embedding."""
    models: Annotated[dict[str, Model], Field(min_length=1)]
    forms: Annotated[tuple[Form, ...], Field(min_length=1)]
    marks: dict[str, Mark]
    topics: dict[str, Topic]
    target: Target
    judge: Judge
    mutator: Mutator
    solver: Solver


def read_world_file(name: str) -> WorldFile:
    """The tables of a bundled world, or of a user's own file.

    Args:
        name: a bundled one's, or a path.

    Raises:
        ValueError: the file is not there, is not TOML, or says something that cannot be; one line.
    """
    try:
        file = WorldFile.model_validate(_read(name))
        _check_names(file)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"the world {name!r}: {place}: {first['msg']}") from None
    except (OSError, ValueError) as error:
        expected, why = f"{', '.join(WORLDS)} or a TOML file", " ".join(str(error).split())
        raise ValueError(f"the world {name!r} (expected {expected}): {why}") from None
    return file


def _read(name: str) -> dict[str, Any]:
    path = Path(__file__).with_name(f"{name}.toml") if name in WORLDS else Path(name)
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if "extends" not in table:
        return table
    below = table.pop("extends")
    if below not in WORLDS or below == name:
        raise ValueError(f"extends: expected one of {', '.join(WORLDS)}, got {below!r}")
    return _merged(_read(below), table, levels=2)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any], levels: int) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merged(below[key], value, levels - 1) if levels and both else value
    return merged


def _check_names(file: WorldFile) -> None:
    """Check that every topic, form, mark, cue, list and rule that a table names is there."""
    marks, forms = {*file.marks, TERSE}, {form.name for form in file.forms}
    _expect("default_topic", [file.default_topic], file.topics)
    for name, topic in file.topics.items():
        _expect(f"topics.{name}.weights", topic.weights, marks)
        _expect(f"topics.{name}.forms", topic.forms, forms)
    for label in LABELS:
        _check_wording(f"target.{label}", getattr(file.target, label), forms)
    _check_mutator(file.mutator, file.marks)
    for name, kind in file.solver.kinds.items():
        _expect(f"solver.kinds.{name}", kind, {"base", *file.solver.cues})
        if "base" not in kind:
            raise ValueError(f"solver.kinds.{name}: expected a base")


def _check_wording(place: str, wording: Wording, forms: Iterable[str]) -> None:
    lists = [wording.decisive, *" ".join(wording.patterns).split()]
    _expect(place, lists, wording.sentences)
    for name, sentences in wording.sentences.items():
        if isinstance(sentences, dict) and (missing := sorted({*forms} - {*sentences})):
            raise ValueError(f"{place}.sentences.{name}: expected some for {', '.join(missing)}")


def _check_mutator(mutator: Mutator, marks: Mapping[str, Mark]) -> None:
    added = {name for name, mark in marks.items() if mark.before + mark.after}
    for name, operator in mutator.operators.items():
        place = f"mutator.operators.{name}"
        _expect(f"{place}.add", [operator.add], {*added, TERSE, ""})
        _expect(f"{place}.remove", operator.remove, {*marks, TERSE, "*"})
        _expect(f"{place}.reword", [operator.reword], {*mutator.rewordings, ""})
        if sum(operator.failures) > 1:
            raise ValueError(f"{place}.failures: expected a sum of 1 at most")
    for name, rules in mutator.rewordings.items():
        for pattern, *options in rules:
            try:
                for option in ("", *options):
                    re.sub(pattern, option, "")
            except (re.error, IndexError) as error:
                raise ValueError(f"mutator.rewordings.{name}: {pattern!r}: {error}") from None


def _expect(place: str, used: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted({*used} - {*known}):
        expected = ", ".join(sorted(known))
        raise ValueError(f"{place}: expected some of {expected}, got {', '.join(unknown)}")
