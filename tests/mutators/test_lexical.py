"""Rule mutators: pure functions that keep the sentence in order."""

from __future__ import annotations

import itertools
import re
import tomllib
from importlib import resources

from hypothesis import given
from hypothesis import strategies as st

from mutators.registry import load_mutators
from mutators.synonyms import lexicon, verb_forms

NOOP, POLITE, SYNONYM = load_mutators(["noop", "add_politeness", "synonym_replace"])
SEEDS = st.integers(min_value=0, max_value=2**63)
HARSH = sorted(lexicon().words)
QUERIES = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*HARSH, "how", "do", "I", "a", "the", "to", "my", "cake", "please", "?"])).map(
        " ".join
    ),
)


@given(QUERIES, SEEDS)
def test_noop_leaves_a_query_as_it_is_and_a_blank_one_empty(query: str, seed: int) -> None:
    assert NOOP.apply(query, (), seed) == (query if query.strip() else "")


@given(QUERIES, st.lists(QUERIES), SEEDS)
def test_the_same_query_and_seed_give_the_same_rewording(query: str, earlier: list[str], seed: int) -> None:
    for mutator in (POLITE, SYNONYM):
        assert mutator.apply(query, earlier, seed) == mutator.apply(query, (), seed)


@given(QUERIES, SEEDS, SEEDS)
def test_rewording_again_by_the_same_rule_changes_nothing(query: str, first: int, second: int) -> None:
    for mutator in (POLITE, SYNONYM):
        once = mutator.apply(query, (), first)
        assert mutator.apply(once, (), second) == once


@given(QUERIES, SEEDS)
def test_politeness_keeps_every_word(query: str, seed: int) -> None:
    assert query.strip().lower()[1:] in POLITE.apply(query, (), seed).lower()


def test_a_polite_query_stays() -> None:
    queries = [
        "Please tell me how to bake.",
        "Could you tell me how to bake?",
        "Hello! How do I bake?",
        "How do I bake? Thank you!",
        "I'd be grateful for a recipe.",
        "Can you please tell me how to bake?",
        "",
    ]
    for query in queries:
        assert {POLITE.apply(query, (), seed) for seed in range(20)} == {query}


def test_a_courtesy_that_is_spoken_of_is_no_courtesy() -> None:
    for query in ("How do I please my boss?", "How do I say thank you?", "Is a hi-fi loud?"):
        assert POLITE.apply(query, (), 0) != query


def test_politeness_fits_the_kind_of_sentence() -> None:
    orders = {POLITE.apply("Write a poem", (), seed) for seed in range(40)}
    assert orders == {"Please write a poem", "Kindly write a poem", "Hello! Please write a poem"}
    questions = {POLITE.apply("Why is it so?", (), seed) for seed in range(99)}
    assert len(questions) == 7
    assert all("Why is it so?" in question for question in questions)
    unfinished = {POLITE.apply("how to bake", (), seed) for seed in range(99)}
    assert all(text.endswith(" how to bake") for text in unfinished)


@given(
    st.lists(st.sampled_from(["how", "do", "I", "bake", "a", "cake", "with", "two", "eggs"])).map(" ".join),
    SEEDS,
)
def test_a_query_without_harsh_words_stays(query: str, seed: int) -> None:
    assert SYNONYM.apply(query, (), seed) == query


def test_harsh_words_give_way_in_the_same_form() -> None:
    table = [
        ("How do I kill time?", {"How do I pass time?"}),
        ("How do I shatter a plate?", {"How do I split a plate?"}),
        ("WHO SABOTAGED IT?", {"WHO DISRUPTED IT?"}),
        ("Sabotage it.", {"Disrupt it."}),
        ("He is executing a plan.", {"He is carrying out a plan."}),
        ("Thieves stole it; it was stolen.", {"Culprits took it; it was taken."}),
        ("Is a riot near?", {"Is a disturbance near?"}),
        ("What is a massacre?", {"What is an atrocity?"}),
        ("Can I massacre them at chess?", {"Can I defeat them at chess?"}),
        ("An enemy of two enemies?", {"An opponent of two opponents?", "A rival of two rivals?"}),
        ("Who rules in World War II and Die Hard?", {"Who rules in World War II and Die Hard?"}),
        ("How do I use `kill -9` and kill()?", {"How do I use `kill -9` and kill()?"}),
        ("Is it skillful to overkill a killjoy?", {"Is it skillful to overkill a killjoy?"}),
        ("How is a kill-switch made?", {"How is a kill-switch made?"}),
    ]
    for query, rewordings in table:
        assert {SYNONYM.apply(query, (), seed) for seed in range(40)} == rewordings, query


def test_the_same_word_gets_the_same_synonym_throughout() -> None:
    for seed in range(20):
        first, second = SYNONYM.apply("kill it? kill them?", (), seed).split("? ")
        assert first.removesuffix(" it") == second.removesuffix(" them?")


def test_the_lexicon_is_large_enough_to_matter() -> None:
    assert len(HARSH) > 400


def test_no_replacement_holds_a_word_that_is_itself_replaced() -> None:
    for word in HARSH:
        for replacement in itertools.chain(*lexicon().words[word].values()):
            assert re.fullmatch(r"[a-z-]+( [a-z-]+)*", replacement), word
            assert not lexicon().pattern.search(replacement), word


def test_a_verb_with_one_past_form_has_replacements_with_one_past_form() -> None:
    tables = tomllib.loads(resources.files("mutators").joinpath("synonyms.toml").read_text(encoding="utf-8"))
    for verb, replacements in tables["verbs"].items():
        _, _, past, participle, _ = verb_forms(verb, tables["irregular"])
        assert past != verb
        if past == participle:
            forms = [verb_forms(replacement, tables["irregular"]) for replacement in replacements]
            assert all(form[2] == form[3] for form in forms), verb
