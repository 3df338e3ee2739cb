"""Mutators by rule: pure functions that keep the sentence in order."""

from __future__ import annotations

import itertools
import re
import tomllib
from importlib import resources

from hypothesis import given
from hypothesis import strategies as st

from mutators.mutator import Mutator
from mutators.registry import EXTRA_MUTATORS, load_mutators
from tests.tables import listed

POLITE, SYNONYM = load_mutators(["add_politeness", "synonym_replace"])
EXTRA = {each.name: each for each in EXTRA_MUTATORS if each.kind == "rule"}
FRAMING = [EXTRA[name] for name in EXTRA if name not in {"lowercase", "typos"}]
SEEDS = st.integers(min_value=0, max_value=2**63)
LEXICON = tomllib.loads(
    resources.files("mutators").joinpath("synonyms.toml").read_text(encoding="utf-8")
)
HARSH = [*LEXICON["verbs"], *LEXICON["nouns"], *LEXICON["phrases"]]
QUERIES = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from([*HARSH, "how", "do", "I", "a", "the", "to", "my", "cake", "please", "?"])
    ).map(" ".join),
)


@given(QUERIES, st.lists(QUERIES), SEEDS, SEEDS)
def test_the_same_query_and_seed_give_the_same_and_once_is_enough(
    query: str, earlier: list[str], seed: int, other: int
) -> None:
    for mutator in (POLITE, SYNONYM):
        once = mutator.apply(query, earlier, seed)
        assert mutator.apply(query, (), seed) == once
        assert mutator.apply(once, (), other) == once


@given(QUERIES, SEEDS)
def test_politeness_keeps_every_word(query: str, seed: int) -> None:
    assert query.strip().lower()[1:] in POLITE.apply(query, (), seed).lower()


@given(QUERIES, SEEDS, SEEDS)
def test_a_framing_keeps_the_query_word_for_word_and_is_put_once(
    query: str, seed: int, other: int
) -> None:
    for mutator in FRAMING:
        once = mutator.apply(query, (), seed)
        assert once.endswith(query.strip())
        assert (once == "") == (not query.strip())
        assert mutator.apply(once, (), other) == once == mutator.apply(query, ("why?",), seed)


@given(QUERIES, SEEDS)
def test_typos_change_the_order_of_few_letters_alone(query: str, seed: int) -> None:
    text = EXTRA["typos"].apply(query, (), seed)
    assert text == EXTRA["typos"].apply(query, (query,), seed)
    assert sorted(text) == sorted(query if query.strip() else "")
    assert sum(a != b for a, b in zip(text, query, strict=False)) <= 4
    for old, new in zip(query.split(), text.split(), strict=False):
        assert old[0] == new[0]


def rewordings(mutator: Mutator, query: str) -> set[str]:
    return {mutator.apply(query, (), seed) for seed in range(99)}


POLITE_ALREADY = [
    *("Please tell me how to bake.", "Could you tell me how to bake?", "Hello! How do I bake?"),
    *("How do I bake? Thank you!", "I'd be grateful for a recipe.", ""),
    "Can you please tell me how to bake?",
]
SYNONYMS = [
    ("How do I kill time?", {"How do I pass time?"}),
    ("WHO SABOTAGED IT?", {"WHO DISRUPTED IT?"}),
    ("Sabotage it.", {"Disrupt it."}),
    ("He is executing a plan.", {"He is carrying out a plan."}),
    ("Thieves stole it; it was stolen.", {"Culprits took it; it was taken."}),
    ("Is a riot near?", {"Is a disturbance near?"}),
    ("What is a massacre?", {"What is an atrocity?"}),
    ("Can I massacre them at chess?", {"Can I defeat them at chess?"}),
    ("An enemy of two enemies?", {"An opponent of two opponents?", "A rival of two rivals?"}),
    *(
        (same, {same})
        for same in (
            "Who rules in World War II and Die Hard?",
            "How do I use `kill -9` and kill()?",
            "Is it skillful to overkill a killjoy?",
            "How is a kill-switch made?",
        )
    ),
]


def test_harsh_words_give_way_in_the_same_form() -> None:
    wrong = [(query, found) for query, found in SYNONYMS if rewordings(SYNONYM, query) != found]
    assert not wrong, listed(wrong)


def test_the_lexicon_holds_plain_words_and_no_replacement_that_is_itself_replaced() -> None:
    assert len(HARSH) > 150
    for kind in ("verbs", "nouns", "phrases"):
        for replacement in itertools.chain(*LEXICON[kind].values()):
            assert re.fullmatch(r"[a-z-]+( [a-z-]+)*", replacement)
            assert SYNONYM.apply(f"to {replacement}", (), 0) == f"to {replacement}"


def test_politeness_fits_the_kind_of_sentence_and_a_polite_query_stays() -> None:
    assert all(rewordings(POLITE, query) == {query} for query in POLITE_ALREADY)
    orders = {"Please write a poem", "Kindly write a poem", "Hello! Please write a poem"}
    assert rewordings(POLITE, "Write a poem") == orders
    questions = rewordings(POLITE, "Why is it so?")
    assert len(questions) == 7
    assert all("Why is it so?" in question for question in questions)
    assert all(text.endswith(" how to bake") for text in rewordings(POLITE, "how to bake"))


def test_the_seed_draws_a_purpose_and_one_or_two_typos() -> None:
    query, short = "Where are prairie dogs allowed?", "How did Ann BEAT Bo?"
    assert rewordings(EXTRA["lowercase"], short) == {"how did ann beat bo?"}
    assert rewordings(EXTRA["typos"], short) == {short}  # no long word
    assert rewordings(EXTRA["as_steps"], short) == {f"Answer in numbered steps. {short}"}
    assert len(rewordings(EXTRA["state_purpose"], query)) == 6
    changed = {
        sum(a != b for a, b in zip(text, query, strict=True))
        for text in rewordings(EXTRA["typos"], query)
    }
    assert changed == {2, 4}
    assert EXTRA["typos"].apply("\u6bd2\u86c7\u4e3a\u4ec0\u4e48?", (), 0)[:2] == "\u6bd2\u86c7"
