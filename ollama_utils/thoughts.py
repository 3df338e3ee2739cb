"""Splits the thoughts from the answer where both stand in a reply's text, between known marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Marks = tuple[str, str]
"""What opens thoughts, and what closes them."""
_IN_WORDS: Marks = ("Here is my thought process:", "Here is my response:")
"""Granite's. They count only as a pair, since an answer may also begin with one of them."""
MARKS: tuple[Marks, ...] = (
    ("<think>", "</think>"),  # DeepSeek, Qwen, GLM, MiniMax, Nemotron, ...
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # EXAONE Deep, Gemini behind OpenAI's API
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("[THINK]", "[/THINK]"),  # Magistral
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ("<|channel>thought", "<channel|>"),  # Gemma
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss (harmony)
    _IN_WORDS,
)
"""Where a model's own parser runs on the server, the thoughts come beside the text instead."""
_AROUND_ANSWERS: tuple[Marks, ...] = (
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|begin_of_solution|>", "<|end_of_solution|>"),
    ("", "<|return|>"),
)
"""What some of these models put around the answer that follows."""
_QUOTES = dict(zip("'\"`*(\u201c\u2018\u300c", "'\"`*)\u201d\u2019\u300d", strict=True))
"""What stands before and behind a mark that an answer quotes."""


def read_marks(texts: Iterable[str]) -> tuple[Marks, ...]:
    """A user's own marks, each written as `<open>...<close>`; any other is a ValueError."""
    marks = []
    for text in texts:
        opening, dots, closing = (part.strip() for part in text.partition("..."))
        if not (opening and dots and closing):
            raise ValueError(
                f"--thought-marks is {text!r}; expected what opens thoughts, three dots, and what "
                "closes them, as in '<musing>...</musing>'"
            )
        marks.append((opening, closing))
    return tuple(marks)


def split_thoughts(text: str, marks: Sequence[Marks] = MARKS) -> tuple[str, str]:
    """The thoughts at a reply's start, and the answer behind them.

    Thoughts that are not closed are all there is: then the answer is empty. Some chat templates
    hold the opening mark, so that a reply has the closing one alone.

    Args:
        text: the reply.
        marks: those that are looked for; the first that fits counts.
    """
    thoughts, answer = "", text
    found = _opened(text, marks) or _closed(text, marks)
    while found:
        thoughts, answer = thoughts + found[0], found[1]
        found = _opened(answer, marks)
    return thoughts, _unwrapped(answer) if thoughts else answer


def _opened(text: str, marks: Sequence[Marks]) -> tuple[str, str] | None:
    """The thoughts and the answer of a text that begins with an opening mark."""
    start = text.lstrip()
    for opening, closing in marks:
        if start[: len(opening)].lower() == opening.lower():
            thoughts, found, answer = _partition(start[len(opening) :], closing)
            if found or opening not in _IN_WORDS:
                return thoughts or opening, answer.lstrip()
    return None


def _closed(text: str, marks: Sequence[Marks]) -> tuple[str, str] | None:
    """The same of a text that has a closing mark, but not its opening one."""
    for opening, closing in marks:
        thoughts, found, answer = _partition(text, closing)
        is_closing = found and opening.lower() not in thoughts.lower()
        if is_closing and opening not in _IN_WORDS and not _is_quoted(thoughts, answer):
            return thoughts or closing, answer.lstrip()
    return None


def _partition(text: str, mark: str) -> tuple[str, str, str]:
    """`str.partition`, but upper and lower case are the same."""
    found = re.search(re.escape(mark), text, re.IGNORECASE)
    return (text[: found.start()], mark, text[found.end() :]) if found else (text, "", "")


def _is_quoted(before: str, after: str) -> bool:
    """Whether the mark between the two texts is quoted: in prose, in quotes or in code."""
    is_in_prose = before[-1:] == " " and after[:1] == " "
    is_in_quotes = _QUOTES.get(before[-1:], "no mark") == after[:1]
    is_in_code = any(before.count(fence) % 2 for fence in ("```", "~~~"))
    return is_in_prose or is_in_quotes or is_in_code


def _unwrapped(answer: str) -> str:
    for opening, closing in _AROUND_ANSWERS:
        if answer.startswith(opening) and answer.rstrip().endswith(closing):
            return answer.removeprefix(opening).rstrip().removesuffix(closing).strip()
    return answer
