"""Replies as tokens: whole however they are divided, and cut where they must end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.replies import Part, end

TEXTS = st.text(alphabet="ab ", max_size=20)
COUNTS = st.integers(1, 30)


@given(text=TEXTS, count=COUNTS)
def test_the_tokens_of_a_text_are_as_many_as_asked_and_make_up_the_text(text: str, count: int) -> None:
    tokens = list(end([Part(text, "word", count)], None, []).tokens)
    assert len(tokens) == count
    assert "".join(token.text for token in tokens) == text
    lengths = {len(token.text) for token in tokens}
    assert max(lengths) - min(lengths) <= 1


@given(
    thought=TEXTS,
    text=TEXTS,
    counts=st.tuples(COUNTS, COUNTS),
    limit=st.none() | st.integers(1, 40),
    stops=st.lists(st.text("ab", min_size=1)),
)
def test_a_reply_ends_before_the_first_stop_sequence_within_its_limit(
    thought: str, text: str, counts: tuple[int, int], limit: int | None, stops: list[str]
) -> None:
    parts = [Part(thought, "thought", counts[0]), Part(text, "word", counts[1])]
    everything = list(end(parts, None, []).tokens)
    ending = end(parts, limit, stops)
    kept = "".join(token.text for token in everything[:limit])
    places = [kept.find(stop) for stop in stops if stop in kept]
    shown = list(ending.tokens)
    assert "".join(token.text for token in shown) == kept[: min(places, default=len(kept))]
    for kind in ("thought", "word"):
        assert "".join(token.text for token in shown if token.kind == kind) == ending.text(kind)
    assert shown[:-1] == everything[: len(shown)][:-1], "only the last is cut"
    assert ending.reason == ("length" if limit and limit < sum(counts) and not places else "stop")
    assert len(shown) <= ending.count <= sum(counts)
