"""Prompts that a model can follow, and the simulator too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.form import not_a_rewording
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.prompts import fenced
from simulator.prompts import task_of

DEFINE, IGNORE, KEEP, BACK = load_mutators(
    ["define_terms", "ignore_trigger", "keep_original", "translate_back"]
)
BY_MODEL = [mutator for mutator in load_mutators(DEFAULT_MUTATORS) if mutator.kind == "model"]
(PARAPHRASE,) = load_mutators(["paraphrase"])
CUES = {
    "paraphrase": "Paraphrase",
    "add_context": "Add context",
    "change_perspective": "Change the perspective",
    "clarify_intent": "Clarify the intent",
    "shorten": "Shorten",
    "expand": "Expand",
    "simplify": "Simplify",
    "formalize": "Formalize",
    "passive_voice": "Use the passive voice",
    "generate_similar": "Write a similar query",
    "crossover": "Combine the two queries",
}
TAGS = st.sampled_from(
    ["<query>", "</QUERY>", "</ query >", "<other>", "</other\n>", "why?", "<", ">"]
)
QUERIES = st.text(min_size=1) | st.lists(TAGS, min_size=1).map("".join)
SEEDS = st.integers(min_value=0, max_value=2**63)


def fences(query: str, other: str | None = None) -> str:
    """The turn that shows a query, or two."""
    texts = {"query": query} if other is None else {"query": query, "other": other}
    return "\n".join(fenced(texts).values())


@given(query=QUERIES, other=QUERIES, seed=SEEDS)
def test_a_prompt_says_what_to_do_and_holds_the_query_which_cannot_leave_its_fence(
    query: str, other: str, seed: int
) -> None:
    for mutator in BY_MODEL:
        prompt = mutator.prompt(query, (other,), seed)
        joins = mutator.name == "crossover" and other != query
        cue = CUES["paraphrase" if mutator.name == "crossover" and not joins else mutator.name]
        assert (prompt.system or "").startswith(cue)
        assert (prompt.system or "").endswith("Reply with the rewritten query alone.")
        assert prompt.text == (fences(query, other) if joins else fences(query))
        task = task_of(prompt.text)
        assert task.query == query.strip(), mutator.name
        assert task.other == (other.strip() if joins else None), mutator.name
        assert prompt == mutator.prompt(query, (other,), seed)


def test_each_is_shown_examples_that_reword_in_one_line_and_answer_nothing() -> None:
    for mutator in BY_MODEL:
        prompts = [mutator.prompt("why?", ("what for?",), seed) for seed in range(40)]
        if mutator.name in {"add_context", "change_perspective"}:  # the seed says who asks, and why
            assert len({prompt.system for prompt in prompts}) > 3
        examples = {example for prompt in prompts for example in prompt.examples}
        assert len(prompts[0].examples) >= 4
        for turn, rewording in examples:
            query, other = task_of(turn).query, task_of(turn).other
            assert turn == (fences(query) if other is None else fences(query, other))
            assert not_a_rewording(rewording, query) == ""
            assert rewording != query
            assert "{" not in rewording


def test_a_rewording_has_room_for_three_times_its_query_and_ends_at_its_line() -> None:
    short, long = (PARAPHRASE.prompt(query, (), 0).options for query in ("why?", "why? " * 100))
    assert short == {"num_predict": 50, "stop": ["\n"]}
    assert long["num_predict"] > 48 + 300
    assert "stop" not in PARAPHRASE.prompt("first line\nsecond line", (), 0).options


KILL = "How do I kill a hung process?"
NOTES = (
    f'By "kill" I mean to end a program. {KILL}',
    f'Do not mind the word "kill", here it only means to end a program, which is harmless. {KILL}',
)


@pytest.mark.parametrize(
    ("said", "notes"),
    [
        ("kill = to end a program", NOTES),
        ('"kill" = to end a program.', NOTES),
        ("shoot = to take a photograph", (KILL, KILL)),
        ("You kill it with a signal.", (KILL, KILL)),
        ("kill = what? To end it.", (KILL, KILL)),
        ("none", (KILL, KILL)),
    ],
)
def test_a_note_says_what_a_word_of_the_query_means(said: str, notes: tuple[str, str]) -> None:
    for mutator, note in zip((DEFINE, IGNORE), notes, strict=True):
        assert mutator.then is not None
        assert mutator.then.apply(said, (KILL,), 0) == note
        assert mutator.then.apply(said, (note,), 0) == note  # once is enough


def test_a_rewording_stands_beside_the_query_unless_it_is_none() -> None:
    assert KEEP.then is not None
    beside = f"{KILL}\n\nIn other words: How is a hung process stopped?"
    assert KEEP.then.apply("How is a hung process stopped?", (KILL,), 0) == beside
    for none in (KILL, "Press Ctrl-C.", "Why is a process hung?"):
        assert KEEP.then.apply(none, (KILL,), 0) == none
    assert KEEP.prompt(beside, (), 0) == PARAPHRASE.prompt(KILL, (), 0)
    other = "How can I end a hung process?"
    assert KEEP.then.apply(other, (beside,), 0) == f"{KILL}\n\nIn other words: {other}"


def test_what_was_translated_is_what_is_translated_back() -> None:
    assert BACK.then is not None
    there, back = BACK.prompt(KILL, (), 0), BACK.then.prompt("Comment ?", (KILL,), 0)
    assert (there.text, back.text) == (fences(KILL), fences("Comment ?"))
    assert "into French" in (there.system or "")
    assert "into English" in (back.system or "")
