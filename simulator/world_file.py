"""The TOML file of a world: its tables, and how one is read.

A file says all, or with `extends = "cautious"` only what differs: its tables, and the tables in
them, are merged into those of the other world; any other value takes the place of the other's.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from simulator.settings import WORLDS

Label = Literal["answered", "partly_refused", "refused"]
LABELS: tuple[Label, ...] = get_args(Label)
TERSE = "terse"
"""The mark of a text without a full stop or a question mark at its end, as in a search box."""


class WorldError(ValueError):
    """A world's file cannot be used; one line says where and why."""


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


def _rule(rule: tuple[str, ...]) -> tuple[str, ...]:
    try:
        pattern = re.compile(f"{rule[0]}|")  # matches the empty text, so that each is tried out
        for replacement in rule[1:]:
            pattern.sub(replacement, "")
    except re.error as error:
        raise ValueError(f"expected a regular expression and replacements: {error}") from None
    return rule


def _shares(shares: tuple[float, ...]) -> tuple[float, ...]:
    if sum(shares) > 1:
        raise ValueError("expected shares that add up to at most 1")
    return shares


Patterns = Annotated[re.Pattern[str], BeforeValidator(_compiled)]
"""A list of regular expressions as one; capitals do not count."""
Words = Annotated[tuple[str, ...], BeforeValidator(_divided)]
"""A text of words and phrases, divided by commas."""
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], Field(min_length=1)]


class Table(BaseModel):
    """A table of the file; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Model(Table):
    """One simulated model; one that plays `all` is target, mutator or judge by its prompt."""

    role: Literal["target", "mutator", "judge", "all", "solver", "embedding"]
    thinks: bool = False
    skill: float = 0.0
    """What a solver adds to the share of problems that it solves."""


class Form(Table):
    """A kind of question; the last form has no patterns: it takes what is left."""

    name: str
    recognise: Patterns | None = None


class Mark(Table):
    """One mark of style."""

    before: tuple[Text, ...] = ()
    """Phrases that a mutation puts before a query; each ends with a colon."""
    after: tuple[Text, ...] = ()
    """Phrases that a mutation puts behind a query; each is a sentence."""
    recognise: Patterns
    """What people write to the same effect."""


class Topic(Table):
    """A topic's words, and how suspicious the target finds it, in points."""

    base: float
    harsh: float = 0.0
    """Points for a harsh word."""
    forms: dict[str, float] = Field(default_factory=dict)
    weights: dict[str, float] = Field(default_factory=dict)
    """Points by mark of style: below 0 it helps, above 0 it hurts."""
    signs: Words = ()
    """Neutral words that tell the topic."""
    words: Words = ()
    """Harsh words, which tell the topic too."""


class Wording(Table):
    """How one kind of reply is worded: a pattern names lists, a sentence of each makes a reply."""

    patterns: Texts
    decisive: str
    """The list whose sentences tell this kind of reply from the others."""
    sentences: dict[str, Texts | dict[str, Texts]]
    """By list; or by list and form of question."""


class Target(Table):
    """From which suspicion the target refuses, and how it words its replies."""

    partly_from: float
    refused_from: float
    leads: Patterns
    """Openings of questions that do not belong to their subject."""
    thoughts: str
    """What a model that thinks says to itself, with the slots of the replies."""
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
    failures: Annotated[tuple[Share, Share, Share, Share], AfterValidator(_shares)] = (0, 0, 0, 0)
    """The shares that come to nothing: unchanged, an apology, chatter, another question."""
    soften: Share = 0.0
    """The share of the others that put harsh words in quotation marks."""
    add: str = ""
    """The mark that it adds."""
    remove: Words = ()
    """The marks that it strips first; `*`: all."""
    reword: str = ""
    """The rules of wording that it applies, which leave the features alone."""

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
    """Templates around `{text}`."""
    apology: Texts
    chatter: Texts
    stray: Texts
    operators: dict[str, Operator]
    rewordings: dict[str, tuple[Annotated[Texts, AfterValidator(_rule)], ...]]
    """Rules by name: each a regular expression, then what may stand in its place."""


class Solver(Table):
    """When a solver is right, as `simulator.solver` tells."""

    clutter: float
    free_cues: int
    example: float
    replies: Texts
    unknown: str
    cues: dict[str, Patterns]
    kinds: dict[str, dict[str, float]]
    """By kind of problem the share solved under plain instructions, and what each cue adds."""
    general: Texts
    """Advice about any problem."""
    special: dict[str, Texts]
    """Advice by kind of problem."""


class WorldFile(Table):
    """A whole file."""

    name: str
    default_topic: str
    """The topic of a text without a word of any."""
    dimension: Annotated[int, Field(ge=1, le=65_536)]
    """Numbers in an embedding."""
    models: Annotated[dict[str, Model], Field(min_length=1)]
    forms: Annotated[tuple[Form, ...], Field(min_length=1)]
    marks: dict[str, Mark]
    """In the order in which they are stripped."""
    topics: dict[str, Topic]
    """Of several in one text the first counts."""
    target: Target
    judge: Judge
    mutator: Mutator
    solver: Solver


def read_world_file(name: str) -> WorldFile:
    """The tables of a bundled world, or of a user's own file.

    Args:
        name: a bundled one's, or a path.

    Raises:
        WorldError: the file is not there, is not TOML, or says something that cannot be.
    """
    try:
        file = WorldFile.model_validate(_read(name))
        _check_names(file)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, came = ".".join(map(str, first["loc"])), first["input"]
        shown = "" if isinstance(came, dict) else f", got {came!r:.100}"
        raise WorldError(f"the world {name!r}: {place}: {first['msg']}{shown}") from None
    except (OSError, ValueError) as error:
        expected = f"{', '.join(WORLDS)} or a TOML file"
        why = " ".join(str(error).split())
        raise WorldError(f"the world {name!r} (expected {expected}): {why}") from None
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
    """Check that every topic, mark, form, list and rule that is named is there."""
    marks, forms = {*file.marks, TERSE}, {form.name for form in file.forms}
    named: list[tuple[str, set[str], set[str]]] = [
        ("default_topic", {file.default_topic}, set(file.topics)),
        ("solver.special", set(file.solver.special), set(file.solver.kinds)),
    ]
    for name, topic in file.topics.items():
        named.append((f"topics.{name}.weights", set(topic.weights), marks))
        named.append((f"topics.{name}.forms", set(topic.forms), forms))
    for label in LABELS:
        wording: Wording = getattr(file.target, label)
        lists = {wording.decisive, *" ".join(wording.patterns).split()}
        named.append((f"target.{label}", lists, set(wording.sentences)))
    for name, operator in file.mutator.operators.items():
        rules = set(file.mutator.rewordings)
        worded = {mark for mark, each in file.marks.items() if each.before + each.after}
        named.append((f"mutator.operators.{name}.add", {operator.add} - {""}, worded | {TERSE}))
        named.append((f"mutator.operators.{name}.remove", {*operator.remove} - {"*"}, marks))
        named.append((f"mutator.operators.{name}.reword", {operator.reword} - {""}, rules))
    for name, kind in file.solver.kinds.items():
        named.append((f"solver.kinds.{name}", set(kind), {"base", *file.solver.cues}))
        if "base" not in kind:
            raise ValueError(f"solver.kinds.{name}: expected a base")
    for place, used, known in named:
        if unknown := sorted(used - known):
            expected = ", ".join(sorted(known))
            raise ValueError(f"{place}: expected some of {expected}, got {', '.join(unknown)}")
    if file.forms[-1].recognise is not None:
        raise ValueError("forms: expected the last one without 'recognise'")
