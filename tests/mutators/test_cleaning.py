"""One query comes out of whatever a model put around it; what stands around the query may stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.cleaning import MAX_CHARS, clean
from tests.tables import listed

QUERY = "How do I stop my brother's Python process?"
ASKED = "How do I kill my brother's Python process?"
AROUND = [
    f'"{QUERY}".',
    f"\u201c{QUERY}\u201d",
    f"\u2018{QUERY}\u2019",
    f'"{QUERY}',
    f"`{QUERY}`",
    f"**{QUERY}**",
    f"<query>\n{QUERY}\n</query>\n\nThat is milder.",
    f"<query-1a2b3c4d>{QUERY}</query-5e6f7a8b>",
    f"Query: <query>How do I kill it?</query>\nRewritten: <query>{QUERY}</query>",
    f"```text\n{QUERY}\n```\nThis keeps the meaning.",
    f"1. {QUERY}\n2. How can I end it?\n3. What ends it?",
    f"Here are some options:\n\n- {QUERY}\n- How can I end it?",
    f"**Rewritten Query**: {QUERY}",
    f"### Rewritten query\n\n{QUERY}",
    f"Original query: How do I kill it?\nRewritten query: {QUERY}",
    f"Here\u2019s a more formal version: {QUERY}",
    f"I've rewritten the query as follows:\n\n{QUERY}",
    f'The query could be rephrased as "{QUERY}".',
    f"Sure! {QUERY}",
    f'Certainly! Here it is:\n\n"{QUERY}"\n\nLet me know if you want changes.',
    f"{QUERY}\n\nThis version uses milder words.",
    f"{QUERY} (Note: one word is milder.)",
    f"{QUERY}\nExplanation: one word is milder.",
    f"{QUERY}<|im_end|>",
]
PLAIN = [
    'What does "break a leg" mean?',
    'Is it "how" or "why"',
    '"To be or not to be", who wrote it?',
    "'Rock 'n' roll': who said it first?",
    "What is 6'2\" in centimetres?",
    "Explain this sentence: the horse raced past the barn fell.",
    "Here is my question, how do I end it?",
    "Sure-fire ways to win at chess?",
    "A question of trust: what is it?",
    "What does (note: old) stand for?",
    "How do I write a <query> tag in XML?",
    "-5 degrees: is that cold?",
    "Sum up this text:\n\nOnce upon a time.",
]
OWN = [
    "I have this poem.\n\nRoses are red.\n\nWhat does it mean?",
    "How do I write an <answer> tag in XML, as in <answer>42</answer>?",
    "Sure.\nWhat now?",
    "Question: how do I end it?",
    "Sum this up (note: in French)",
    "What does <|im_end|> mean in a prompt?",
    '"To be or not to be?"',
    "1. Stay.\n2. Go.\nWhich is it?",
    "Fix my code.\n\n```\nprint(1)\n```",
]
LIKE_THE_QUERY = [
    ("Sum this up:\n\nOnce upon a time.", "What happens here?\n\nOnce upon a time."),
    ("What is an <answer> for?", "What are <answer>42</answer> tags for?"),
    ("What is <|im_end|> in a prompt?", "What does <|im_end|> stand for?"),
    ("Question: how do I end it?", "question: what ends it?"),
    ("1. Stay.\n2. Go.\nWhich is it?", "- Remain.\n- Leave.\nWhich?"),
    ("Draft: A\nRevised: B\nWhich is best?", "First: A\nRevised: B\nWhich is better?"),
]
# fmt: off
PIECES = st.sampled_from([
    "Sure! ", "Rewritten query: ", '"', "'", "\u201c", "\u201d", "**", "`", "```", "```text\n",
    "\n", "\n\n",
    "1. ", "- ", "<query>", "</query>", "Note: ", "(", ")", ":", "> ", "# ", "what", " ", "it?",
    "Here is it:", "</s>", "<|end|>",
])
LOOPS = [
    "\n", " ", "\n ", "# ", "> ", "1. ", "*", "* ", "_", "`", "```", "```\n", '"', "'", "(", "x",
    "x ", "x\n", "x\n\n", "\nrewritten ", "\nrewritten:\n", "query ", "query:", "the ", "sure! ",
    "here is it: ", "i've re", "\nnote ", "\n(note:", "rewritten as ", "<query>", "</query>",
    "<query>x ", "<query><answer>", "</query>\n", "<|end|>", "<|", "</s>", "\u201c", "x.\u201d ",
]
# fmt: on
REPLIES = st.one_of(st.text(), st.lists(PIECES).map("".join))


def test_a_query_comes_out_of_what_stands_around_it_and_nothing_else_does() -> None:
    table = [(ASKED, text, QUERY) for text in AROUND]
    table += [(ASKED, text, text) for text in PLAIN]
    table += [(text, text, text) for text in PLAIN + OWN]
    table += [(ASKED, '"Say "how" in "French"."', 'Say "how" in "French".')]
    nothing = ("", "  \n ", "Rewritten query:", "Sure! Here is the query:\n", '""')
    table += [(ASKED, text, "") for text in nothing]
    for query, rewrite in LIKE_THE_QUERY:
        table += [(query, rewrite, rewrite), (query, f"Sure! Here it is:\n{rewrite}", rewrite)]
    wrong = [
        (query, text, clean(text, query))
        for query, text, left in table
        if clean(text, query) != left
    ]
    assert not wrong, listed(wrong)


@given(REPLIES, REPLIES)
def test_a_query_stays_what_is_clean_stays_and_nothing_is_added(text: str, query: str) -> None:
    assert clean(query, query) == query.strip()
    once = clean(text, query)
    assert clean(once, query) == once
    assert once in text


@pytest.mark.timeout(120)
def test_a_loop_of_one_piece_is_read_in_linear_time() -> None:
    """With quadratic work this size runs into the timeout; a long query lifts the limit."""
    for opening in ("", "<query>x\n"):
        for piece in LOOPS:
            text = f"{opening}{piece * (30_000 // len(piece))}x"
            clean(text, "x" * len(text))
    assert len(clean("x" * 2 * MAX_CHARS, ASKED)) == MAX_CHARS
