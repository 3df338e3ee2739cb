"""Replies as tokens: whole however they are divided, and cut where they must end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.simulator.tokens import end, split

TEXTS = st.text(alphabet="ab ", max_size=20)
COUNTS = st.integers(1, 30)


@given(text=TEXTS, count=COUNTS)
def test_the_tokens_of_a_text_are_as_many_as_asked_and_make_up_the_text(text: str, count: int) -> None:
    tokens = split(text, count, "word")
    assert len(tokens) == count
    assert "".join(token.text for token in tokens) == text
    lengths = {len(token.text) for token in tokens}
    assert max(lengths) - min(lengths) <= 1


@given(
    text=TEXTS, count=COUNTS, limit=st.none() | st.integers(1, 40), stops=st.lists(st.text("ab", min_size=1))
)
def test_a_reply_ends_before_the_first_stop_sequence_within_its_limit(
    text: str, count: int, limit: int | None, stops: list[str]
) -> None:
    tokens = split(text, count, "word")
    ending = end(tokens, limit, stops)
    kept = "".join(token.text for token in tokens[:limit])
    places = [kept.find(stop) for stop in stops if stop in kept]
    assert "".join(token.text for token in ending.tokens) == kept[: min(places, default=len(kept))]
    assert ending.reason == ("length" if limit and limit < count and not places else "stop")
    assert len(ending.tokens) <= ending.count <= count
