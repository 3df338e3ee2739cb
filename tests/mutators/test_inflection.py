"""Verb forms and plurals come out as English has them."""

from __future__ import annotations

import pytest

from mutators.synonyms import plural, verb_forms, with_article


@pytest.mark.parametrize(
    "forms",
    [
        ("end", "ends", "ended", "ended", "ending"),
        ("free", "frees", "freed", "freed", "freeing"),
        ("close up", "closes up", "closed up", "closed up", "closing up"),
        ("carry out", "carries out", "carried out", "carried out", "carrying out"),
        ("annoy", "annoys", "annoyed", "annoyed", "annoying"),
        ("die", "dies", "died", "died", "dying"),
        ("press", "presses", "pressed", "pressed", "pressing"),
        ("take away", "takes away", "took away", "taken away", "taking away"),
    ],
)
def test_a_verb_has_five_forms(forms: tuple[str, ...]) -> None:
    assert verb_forms(forms[0], {"take": ["takes", "took", "taken", "taking"]}) == forms


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("toy", "toys"),
        ("enemy", "enemies"),
        ("long blade", "long blades"),
        ("loss", "losses"),
        ("knife", "knives"),
    ],
)
def test_a_noun_has_a_plural(one: str, many: str) -> None:
    assert plural(one, {"knife": "knives"}) == many


@pytest.mark.parametrize(
    ("article", "word", "fitting"),
    [("a", "offence", "an"), ("An", "rival", "A"), ("a", "use of force", "a"), ("an", "unkind person", "an")],
)
def test_an_article_fits_the_word_after_it(article: str, word: str, fitting: str) -> None:
    assert with_article(article, word) == fitting
