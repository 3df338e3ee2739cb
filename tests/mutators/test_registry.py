"""Mutators are found by name; a user's own come from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutators.mutator import MutatorError
from mutators.registry import DEFAULT_MUTATORS, EXTRA_MUTATORS, load_mutators
from records.user_file import UserFileError

HEAD = "from mutators.registry import by_model, by_rule\n"
OWN = f"""{HEAD}
from mutators.rewrite import shorten

@by_rule
def shout(query, earlier, seed):
    return query.upper()

@by_model
def rhyme(query, earlier, seed):
    return f"Make the query rhyme. <query>{{query}}</query>"

def plain(query, earlier, seed):
    return " \\n "

said, asked = by_rule(plain), by_model(plain)
"""


def write(folder: Path, text: str) -> str:
    path = folder / "own.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_built_in_mutators_load_in_the_order_they_are_named() -> None:
    names = tuple(reversed(DEFAULT_MUTATORS))
    mutators = load_mutators(names)
    assert tuple(mutator.name for mutator in mutators) == names
    by_rule = {mutator.name for mutator in mutators if mutator.kind == "rule"}
    assert (len(names), by_rule) == (14, {"noop", "add_politeness", "synonym_replace"})
    extra = [mutator.name for mutator in EXTRA_MUTATORS]
    assert load_mutators(extra) == EXTRA_MUTATORS
    assert not set(extra) & set(DEFAULT_MUTATORS)
    calls = {mutator.name: mutator.calls for mutator in EXTRA_MUTATORS if mutator.kind == "model"}
    assert calls == {
        **dict.fromkeys(("define_terms", "ignore_trigger", "keep_original"), 1),
        "translate_back": 2,
    }


def test_a_users_mutators_load_from_their_file_beside_built_in_ones(tmp_path: Path) -> None:
    own = write(tmp_path, OWN)
    shorten, shout, rhyme = load_mutators(["shorten", f"{own}:shout", f"{own}:rhyme"])
    assert (shorten,) == load_mutators([f"{own}:shorten"])
    assert (shout.kind, rhyme.kind) == ("rule", "model")
    assert shout.apply("why?", (), 0) == "WHY?"
    assert rhyme.prompt("why?", (), 0).text == "Make the query rhyme. <query>why?</query>"
    ((said,), (asked,)) = (load_mutators([f"{own}:{name}"]) for name in ("said", "asked"))
    assert said.apply("why?", (), 0) == ""
    with pytest.raises(MutatorError, match=r"'plain' of .* returned a blank prompt"):
        asked.prompt("why?", (), 0)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no mutator named"),
        (["paraphrse"], "did you mean paraphrase"),
        (["zzz"], "expected one of noop, paraphrase"),
        (["my_mutators.py"], "expected FILE.py:NAME"),
        (["{own}x.py:shout"], r"x\.py.* there is no such file"),
        (["{own}:shuot"], r"has no mutator 'shuot'; did you mean shout"),
        (["{own}:plain"], "decorate it with by_model or by_rule"),
        (["{own}:shout", "noop", "{own}:shout"], "'shout' is named twice"),
    ],
)
def test_a_name_that_means_nothing_is_met_with_what_to_write_instead(
    tmp_path: Path, names: list[str], message: str
) -> None:
    own = write(tmp_path, OWN)
    with pytest.raises((ValueError, UserFileError), match=message):
        load_mutators([name.format(own=own) for name in names])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('two\\nlines')", "while it is imported: RuntimeError: two lines$"),
        ("def broken(", "fails while it is imported: SyntaxError"),
        ("import sys\nsys.exit(0)", "fails while it is imported: SystemExit: 0$"),
        (f"{HEAD}@by_rule\nasync def shout(query, earlier, seed): ...", "expected a plain def"),
        (f"{HEAD}@by_rule\ndef shout(query): ...", r"a plain def of \(query, earlier, seed\)$"),
        (
            f"{HEAD}@by_rule\ndef noop(query, earlier, seed): ...\nshout = noop",
            "has the name of a built-in mutator, 'noop'; give it another name",
        ),
    ],
)
def test_a_file_that_fails_is_one_line_that_says_why(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UserFileError, match=message) as caught:
        load_mutators([f"{write(tmp_path, text)}:shout"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("return [query] * 1000", r"returned \['why\?', .*, \.\.\.\]; expected a str"),
        ("raise ValueError('two\\nlines')", "raised ValueError: two lines"),
        ("return chr(0xD800)", r"returned '\\ud800'; expected a str of valid Unicode"),
    ],
)
@pytest.mark.parametrize("kind", ["rule", "model"])
def test_a_mutator_that_gives_no_text_is_one_line_that_says_why(
    tmp_path: Path, kind: str, body: str, cause: str
) -> None:
    path = write(tmp_path, f"{HEAD}@by_{kind}\ndef shout(query, earlier, seed): {body}\n")
    (shout,) = load_mutators([f"{path}:shout"])
    with pytest.raises(MutatorError, match=rf"^mutator 'shout' of .*own\.py {cause}") as caught:
        (shout.apply if kind == "rule" else shout.prompt)("why?", (), 0)
    assert "\n" not in str(caught.value)
