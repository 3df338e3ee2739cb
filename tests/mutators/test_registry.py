"""Mutators are found by name; a user's own come from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutators.mutator import MutatorError
from mutators.registry import DEFAULT_MUTATORS, EXTRA_MUTATORS, load_mutators
from records.user_file import UserFileError

RULE = "from mutators.registry import by_rule\n@by_rule\n"
OWN = '''
from dataclasses import dataclass

from mutators.registry import by_model, by_rule


@dataclass(frozen=True)
class Voice:
    mark: str = "!"


@by_rule
def shout(query, earlier, seed):
    """Say it louder.

    Not a line of the summary.
    """
    return query.upper() + Voice().mark


@by_model
def rhyme(query, earlier, seed):
    return f"Make the query rhyme. <query>{query}</query>"


def plain(query, earlier, seed):
    return query
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "my_mutators.py"
    path.write_text(OWN, encoding="utf-8")
    return str(path)


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "other.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_fourteen_built_in_mutators_load_in_the_order_they_are_named() -> None:
    names = tuple(reversed(DEFAULT_MUTATORS))
    assert len(names) == 14
    mutators = load_mutators(names)
    assert tuple(mutator.name for mutator in mutators) == names
    by_rule = {mutator.name for mutator in mutators if mutator.kind == "rule"}
    assert by_rule == {"noop", "add_politeness", "synonym_replace"}


def test_the_other_built_in_mutators_are_found_by_name_and_are_no_default() -> None:
    names = [mutator.name for mutator in EXTRA_MUTATORS]
    assert load_mutators(names) == EXTRA_MUTATORS
    assert not set(names) & set(DEFAULT_MUTATORS)
    assert {
        mutator.name: mutator.calls for mutator in EXTRA_MUTATORS if mutator.kind == "model"
    } == {
        "define_terms": 1,
        "ignore_trigger": 1,
        "keep_original": 1,
        "translate_back": 2,
    }


def test_a_users_mutators_load_from_their_file_beside_built_in_ones(own: str) -> None:
    paraphrase, shout, rhyme = load_mutators(["paraphrase", f"{own}:shout", f"{own}:rhyme"])
    assert paraphrase.name == "paraphrase"
    assert (shout.kind, rhyme.kind) == ("rule", "model")
    assert shout.apply("why?", (), 0) == "WHY?!"
    assert rhyme.prompt("why?", (), 0).text == "Make the query rhyme. <query>why?</query>"


def test_a_file_may_offer_a_built_in_mutator_again(tmp_path: Path) -> None:
    path = write(tmp_path, "from mutators.rewrite import shorten\n")
    assert load_mutators([f"{path}:shorten"]) == load_mutators(["shorten"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no mutator named"),
        (["paraphrse"], "did you mean paraphrase"),
        (["zzz"], "expected one of noop, paraphrase"),
        (["my_mutators.py"], "expected FILE.py:NAME"),
        (["{own}x.py:shout"], r"no file at '.*x\.py'"),
        (["{own}:shuot"], r"has no mutator 'shuot'; did you mean shout\?"),
        (["{own}:plain"], "decorate it with by_model or by_rule"),
        (["{own}:shout", "noop", "{own}:shout"], "'shout' is named twice"),
    ],
)
def test_a_name_that_means_nothing_is_met_with_what_to_write_instead(
    own: str, names: list[str], message: str
) -> None:
    with pytest.raises((ValueError, UserFileError), match=message):
        load_mutators([name.format(own=own) for name in names])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('two\\nlines')", "while it is imported: RuntimeError: two lines$"),
        ("def broken(", "fails while it is imported: SyntaxError"),
        ("import sys\nsys.exit(0)", "fails while it is imported: SystemExit: 0$"),
        (
            f"{RULE}async def shout(query, earlier, seed): ...",
            "is no mutator: expected a plain def",
        ),
        (f"{RULE}def shout(query): ...", r"a plain def of \(query, earlier, seed\)$"),
    ],
)
def test_a_file_that_fails_is_one_line_that_says_why(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserFileError, match=message) as caught:
        load_mutators([f"{path}:shout"])
    assert "\n" not in str(caught.value)


def test_a_users_mutator_may_not_take_a_built_in_name(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"{RULE}def noop(query, earlier, seed): ...\n",
    )
    with pytest.raises(
        ValueError, match="has the name of a built-in mutator, 'noop'; give it another name"
    ):
        load_mutators([f"{path}:noop"])


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("return None", "returned None; expected a str"),
        ("return [query] * 1000", r"returned \['why\?', .*, \.\.\.\]; expected a str"),
        ("return query.split()[7]", "raised IndexError: list index out of range"),
        ("raise ValueError('two\\nlines')", "raised ValueError: two lines"),
        ("return chr(0xD800)", r"returned '\\ud800'; expected a str of valid Unicode"),
    ],
)
@pytest.mark.parametrize("kind", ["rule", "model"])
def test_a_mutator_that_gives_no_text_is_one_line_that_says_why(
    tmp_path: Path, kind: str, body: str, cause: str
) -> None:
    head = RULE.replace("rule", kind)
    path = write(tmp_path, f"{head}def shout(query, earlier, seed): {body}\n")
    (shout,) = load_mutators([f"{path}:shout"])
    with pytest.raises(MutatorError, match=rf"^mutator 'shout' of .*other\.py {cause}") as caught:
        (shout.apply if kind == "rule" else shout.prompt)("why?", (), 0)
    assert "\n" not in str(caught.value)


def test_a_blank_rewording_is_an_empty_one_and_a_blank_prompt_an_error(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "from mutators.registry import by_model, by_rule\n"
        "def blank(query, earlier, seed):\n    return ' \\n '\n"
        "said, asked = by_rule(blank), by_model(blank)\n",
    )
    (said,) = load_mutators([f"{path}:said"])
    (asked,) = load_mutators([f"{path}:asked"])
    assert said.apply("why?", (), 0) == ""
    with pytest.raises(MutatorError, match=r"'blank' of .* returned a blank prompt"):
        asked.prompt("why?", (), 0)
