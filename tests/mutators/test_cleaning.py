"""A query comes out of whatever a model dressed it in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.cleaning import clean

QUERY = "How do I stop my brother's Python process?"
DRESSED = [
    f'"{QUERY}"',
    f'"{QUERY}".',
    f"'{QUERY}'",
    f"\u201c{QUERY}\u201d",
    f"\u2018{QUERY}\u2019",
    f'"{QUERY}',
    f"`{QUERY}`",
    f"**{QUERY}**",
    f"*{QUERY}*",
    f"> {QUERY}",
    f"# {QUERY}",
    f"<query>{QUERY}</query>",
    f"<query>\n{QUERY}\n</query>\n\nThat is milder.",
    f"<query>{QUERY}",
    f"{QUERY}</query>",
    f"Query: <query>How do I kill it?</query>\nRewritten: <query>{QUERY}</query>",
    f"```\n{QUERY}\n```",
    f"```text\n{QUERY}\n```\nThis keeps the meaning.",
    f"```\n{QUERY}",
    f"1. {QUERY}\n2. How can I end it?\n3. What ends it?",
    f"1) {QUERY}\n\n2) How can I end it?",
    f"- {QUERY}\n- How can I end it?",
    f"Here are some options:\n\n1. {QUERY}\n2. How can I end it?",
    f"Query: {QUERY}",
    f"Rewritten query: {QUERY}",
    f"Rewritten:\n{QUERY}",
    f"**Rewritten query:** {QUERY}",
    f"**Rewritten Query**: {QUERY}",
    f"### Rewritten query\n\n{QUERY}",
    f"Passive voice: {QUERY}",
    f'Combined query: "{QUERY}"',
    f"The rewritten query is: {QUERY}",
    f"Original query: How do I kill it?\nRewritten query: {QUERY}",
    f'Here is the rewritten query: "{QUERY}"',
    f"Here\u2019s a more formal version: {QUERY}",
    f"Here's the rewritten query\n\n{QUERY}",
    f"I've rewritten the query as follows:\n\n{QUERY}",
    f'The query could be rephrased as "{QUERY}".',
    f"Sure! {QUERY}",
    f"Sure, here is the query: {QUERY}",
    f"Sure! Here's a paraphrased version of your query:\n\n{QUERY}",
    f"Of course.\n\n{QUERY}",
    f'Certainly! Here it is:\n\n"{QUERY}"\n\nLet me know if you want changes.',
    f"{QUERY}\n\nThis version uses milder words.",
    f"{QUERY}\n(Note: one word is milder.)",
    f"{QUERY}\nExplanation: one word is milder.",
    f"{QUERY}\n\n---\n\nI kept the meaning.",
    f"<think>\nKill is harsh.\n</think>\n\n{QUERY}",
    f"{QUERY}<|im_end|>",
    f"\n\n  {QUERY}\n",
]
PLAIN = [
    'What does "break a leg" mean?',
    '"How" and "why" differ in what?',
    'Is it "how" or "why"?',
    'Is it "how" or "why"',
    '"To be or not to be", who wrote it?',
    "'Tis the season: who wrote it?",
    "'Rock 'n' roll': who said it first?",
    "What's in the dogs' bowl?",
    "What is 6'2\" in centimetres?",
    "Explain this sentence: the horse raced past the barn fell.",
    "Here is my question, how do I end it?",
    "Okay, so how do I end it?",
    "Sure-fire ways to win at chess?",
    "Of course the cat sat; why?",
    "The result: who won?",
    "A question of trust: what is it?",
    "Rewritten history: what is it?",
    "Translate: guten Tag",
    "How do I write a <query> tag in XML?",
    "How do I use `kill -9`?",
    "How do I use *args and **kwargs?",
    "3 ways to pass the time?",
    "-5 degrees: is that cold?",
    "Why is 5 > 3?",
    "I'm sorry, but I can't help with that.",
    "Sum up this text:\n\nOnce upon a time.",
    "Fix my code.\n\n```\nprint(1)\n```",
]
# fmt: off
WORDS = st.sampled_from([
    "how", "what", "why", "the", "a", "my", "dog", "dog's", "can't", "stop", "Python", "3", "42nd", "it's?",
    "(really)", "well-known,", "\u00e9t\u00e9", "\u4f60\u597d", "100%", "C++", "kill",
])
ENDS = st.sampled_from(["", ".", "?", "!", "..."])
PIECES = st.sampled_from([
    "Sure! ", "Rewritten query: ", '"', "'", "\u201c", "\u201d", "**", "`", "```", "```text\n", "\n", "\n\n",
    "1. ", "- ", "<query>", "</query>", "<think>", "Note: ", "(", ")", ":", "> ", "# ", "what", " ", "it?",
    "Here is it:", "</s>", "<|end|>",
])
# fmt: on


@pytest.mark.parametrize("text", DRESSED)
def test_a_query_comes_out_of_its_dress(text: str) -> None:
    assert clean(text) == QUERY


@pytest.mark.parametrize("text", PLAIN)
def test_a_query_that_looks_like_dress_stays(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    "text", ["", "  \n ", "Rewritten query:", "Sure! Here is the rewritten query:\n", '""']
)
def test_dress_with_nothing_in_it_is_empty(text: str) -> None:
    assert clean(text) == ""


@given(st.lists(WORDS, min_size=1, max_size=12), ENDS, st.sampled_from(["", " ", "\n"]))
def test_a_plain_query_comes_back_stripped(words: list[str], end: str, space: str) -> None:
    query = " ".join(words) + end
    assert clean(space + query + space) == query


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.lists(PIECES).map("".join))
def test_cleaning_only_takes_away(text: str) -> None:
    assert clean(text) in text
