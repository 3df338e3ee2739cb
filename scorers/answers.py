r"""The final answer in a model's reply, and whether it is the right one, by several measures.

A right answer may stand at the end of a text: after `####` (GSM8K) or in `\boxed{}` (MATH).
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, product

Measure = Callable[[str, str], float]
"""`(reply, answer) -> float`: how right a reply is, from 0 to 1."""

_MARKED = re.compile(r"\banswer(?:[ \t]+is\b[ \t]*:?|[*_`]*[ \t]*:)", re.IGNORECASE)
_DRESS = " \t\r\n*_`\"'\u201c\u201d\u2018\u2019"
_ENDS = ".!;,:"
_BOX = "\\boxed{"
_LATEX = re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_SPACING = re.compile(r"\\(?:[!,;:]|left\b|right\b|(?=[%$&#_]))")
_NUMBER = re.compile(
    r"(?:(?<![\w.,)])[-+\u2212]|(?<!\w))"
    r"(?:\d{1,3}(?P<by>[,.' \u00a0\u202f\u2019])\d{3}(?:(?P=by)\d{3})*(?!\d)(?:(?!(?P=by))[.,]\d+)?"
    r"|\d+(?:[.,]\d+)?|\.\d+)"
    r"(?:e[-+]?\d+)?(?:/\d+)?",
    re.IGNORECASE,
)
_SEPARATORS = re.compile(r"['\s\u2019]")
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}([.,])\d{3}(?:\1\d{3})*")
_ANOTHER = re.compile(r"\s*(?:or|to|and|[-\u2013/*+x\u00d7])\s*[-+\u2212]?\.?\d", re.IGNORECASE)
_ORDINAL = re.compile(r"^(?:st|nd|rd|th)\b", re.IGNORECASE)
_ITEM_MARK = re.compile(r"^(?:[-*\u2022]|\(?\d+[.)])\s+")
_CLAUSE_END = re.compile(r"[,.:;!?\n]")
_DENIED = re.compile(
    r"\b(?:not|never|cannot)\b|n['\u2019]t\b|\u2260|\b(?:minus|negative|than)\s*$", re.IGNORECASE
)
_SIGNS = str.maketrans(
    dict.fromkeys("%\u2030\u00b0\u20ac\u00a3\u00a5\u20b9\u00a2#=~\u2248,;|>\u2192", " ")
)
"""Of units, and between the parts of a list."""
_FILLERS = frozenset(
    ("it", "this", "that", "is", "was", "of", "on", "at", "about", "exactly", "roughly", "and")
)

_OPTION = re.compile(
    r"[(\[]?([A-Za-z1-9])(?:[)\]]?[.:)\]]?\s*|[)\].:]+\s+(?P<text>\S.*))", re.DOTALL
)
_CHOSEN = (
    re.compile(r"^[(\[]?([A-Za-z1-9])[)\].:]+(?:\W|$)|^[(\[]?([A-Za-z1-9])$"),
    re.compile(r"\b(?:option|choice|letter)[\s(\[*\"']*([A-Za-z1-9])\b", re.IGNORECASE),
    re.compile(r"[(\[]([A-Za-z1-9])[)\]]"),
    # A and I are words before another one.
    re.compile(
        r"(?<![\w'\u2019])([B-HJ-Z]|[AI](?!\s+(?!because|since|as\b|which|and\b)[a-z]))(?![\w'\u2019])"
    ),
)
"""Where the letter of an option stands in an answer; the first that finds one decides."""

_OF_NUMBER = re.compile(r"(?<=\d)[./](?=\d)|(?<!\w)-(?=[.\d])")
_ARTICLES = re.compile(r"(?i:\b(?:an|the)\b)|\ba\b|\bA\b(?=\s+[a-z])")
"""A capital A may be a name: Room A 3."""
_ALONE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_LONGEST = 30
"""Words that a model may say again exactly as somebody wrote them."""


def final_answer(reply: str) -> str:
    r"""The answer that a reply ends on, without markdown, quotes and full stop.

    It stands after the `####` of the last line, in the last `\boxed{}`, or after the last
    "Answer:" or "answer is"; where none is found it is the last line. A list that goes on over
    several lines is kept whole. Empty where the reply says nothing.
    """
    lines = reversed(_plain(reply).splitlines())
    return _marked(reply) or next(filter(None, map(_undressed, lines)), "")


def expected(answer: str) -> str:
    r"""What a right answer has after its `####` or in its `\boxed{}` at its end; else all of it."""
    return _ended(answer) or answer.strip()


def gives_answer(measure: Measure, reply: str) -> bool:
    """Whether a reply marks an answer, or comes to a number where one is asked for."""
    return bool(_marked(reply)) or (measure is number and _said_number(reply) is not None)


def is_right(reply: str, answer: str) -> bool:
    """Whether a reply's final answer is the expected one.

    What is expected says how it compares:

    - One number and no word (1200.0, 75%, \u20ac5, 15th): as `number`.
    - One number and words (15 April, Gate 3, 5 km): the same number and the same words, none more;
      April 15 and the 15th of April are 15 April.
    - Else, the same words in their order, see `_words_of`.
    """
    said, wanted = final_answer(reply), _plain(expected(answer))
    one, found = _only(wanted), _only(said)
    if one is None:
        return bool(_telling(wanted)) and _telling(said) == _telling(wanted)
    if not _beside(one):
        return bool(number(reply, answer))
    return found is not None and _equal(found, one) and _beside(found) == _beside(one)


def exact(reply: str, answer: str) -> float:
    """1 where the final answer has the same words, see `_words_of`."""
    wanted = _words_of(expected(answer))
    return float(bool(wanted) and _words_of(final_answer(reply)) == wanted)


def number(reply: str, answer: str) -> float:
    """1 where the reply comes to the number that the answer has, whatever words are beside either.

    It is the number after the last "=" of the final answer, else its first one; where nothing marks
    the answer, the last number of the reply. None is one that is denied or moved (not, minus, more
    than), or that is one of several (3 or 4). 1,200 and 1 200 are 1200; 1.200 is 1200 or 1.2; 3/4
    is .75. Whole numbers are the same to the digit (the first 15 of a long one), others to nine.
    """
    wanted = _plain(expected(answer))
    one = _only(wanted) or _only(wanted.rpartition("=")[2])
    found = _said_number(reply)
    return float(one is not None and found is not None and _equal(found, one))


def choice(reply: str, answer: str) -> float:
    """1 where the reply chooses the option: by its letter (or digit), or by its text alone.

    An answer is `B`, `(B)` or `B.`, and may have the option's text: `(B) Paris`.
    """
    option = _OPTION.fullmatch(_undressed(_plain(expected(answer))))
    if option is None:
        return 0.0
    said, text = final_answer(reply), option["text"]
    if text and _words_of(said) == _words_of(text):
        return 1.0
    first = next(filter(None, map(_undressed, _plain(reply).splitlines())), "")
    places = [said] if _marked(reply) else [said, first]
    chosen = next(filter(None, map(_chosen, places)), "")
    return float(chosen.upper() == option[1].upper())


def f1(reply: str, answer: str) -> float:
    """The F1 of the words of the final answer, or of a reply that marks none; see `_words_of`."""
    said, wanted = _words_of(_marked(reply) or reply), _words_of(expected(answer))
    common = (Counter(said) & Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted)) if common else 0.0


def contains(reply: str, answer: str) -> float:
    """1 where the words of the answer stand somewhere in the reply, one after another."""
    said, wanted = (" ".join(["", *_words_of(each), ""]) for each in (reply, expected(answer)))
    return float(bool(wanted.strip()) and wanted in said)


MEASURES: Mapping[str, Measure] = {
    "exact": exact,
    "number": number,
    "choice": choice,
    "f1": f1,
    "contains": contains,
}
"""By the names that `--reward` and `--scorer` have for them."""
_EXPECTED: Mapping[Measure, str] = {
    exact: f"one line of at most {_LONGEST} words",
    is_right: f"one number, or one line of at most {_LONGEST} words",
    number: "one number",
    choice: "the letter of one option, as B or (B) Paris",
    f1: "some words",
    contains: "some words",
}


def rightness(measure: Measure, reply: str, answers: Iterable[str]) -> float:
    """How right a reply is, where any of several answers is right."""
    return max((float(measure(reply, each)) for each in answers), default=0.0)


def check_answers(
    rows: Sequence[tuple[int, Sequence[str]]], measure: Measure, place: object, flag: str
) -> None:
    """Check that each row of a file, its number and right answers, has one that a reply can give.

    The measure is of `MEASURES`, or `is_right`; `flag` chose it, as `--reward number`.

    Raises:
        ValueError: there are rows without; the message names `place`, the file, and the first.
    """

    def can_be_given(answer: str) -> bool:
        ended = expected(answer)
        is_short = measure not in {exact, is_right} or len(ended.split()) <= _LONGEST
        return is_short and measure(f"Answer: {ended}", answer) > 0

    bad = [(row, answers) for row, answers in rows if not any(map(can_be_given, answers))]
    if bad:
        row, answers = bad[0]
        what = f"the answer {' '.join(answers[0].split())!r:.60}" if answers else "no answer"
        raise ValueError(
            f"{place}, row {row}: {what}, which no reply can give under {flag}: expected "
            f"{_EXPECTED[measure]}, or that after #### or in \\boxed{{}} at its end "
            f"({len(bad)} of {len(rows)} rows are like it)"
        )


def _ended(text: str) -> str:
    r"""What stands after the `####` of the last line, or in the last `\boxed{}`; "" for neither."""
    _, mark, end = text.rstrip().rpartition("####")
    if mark and "\n" not in end:
        return end.strip()
    begin = text.rfind(_BOX) + len(_BOX)
    depth = int(begin >= len(_BOX))
    for place in range(begin, len(text)) if depth else ():
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return text[begin:place].strip()
    return ""


def _marked(reply: str) -> str:
    """The final answer, where something marks it; else ""."""
    if ended := _undressed(_plain(_ended(reply))):
        return ended
    text = _plain(reply)
    for mark in reversed(list(_MARKED.finditer(text))):
        if after := _undressed(text[mark.end() :]):
            return _undressed(after if _ITEM_MARK.match(after) else after.splitlines()[0])
    return ""


def _plain(text: str) -> str:
    """The text without what TeX has around numbers."""
    text = _FRACTION.sub(r"\1/\2", _SPACING.sub("", text))
    return _LATEX.sub(r"\1", text).replace("$", " ")


def _undressed(text: str) -> str:
    """The text without dress at both ends, and without the marks that end a sentence."""
    return text.lstrip(_DRESS).rstrip(_DRESS + _ENDS)


def _only(text: str) -> re.Match[str] | None:
    """The one number of a text; None where there are others, or none."""
    found = list(islice(_NUMBER.finditer(text), 2))
    return found[0] if len(found) == 1 else None


def _said_number(reply: str) -> re.Match[str] | None:
    """The number that a reply comes to; see `number`."""
    marked = _marked(reply)
    lines = [marked] if marked else reversed(_plain(reply).splitlines())
    text = next(filter(_NUMBER.search, lines), "")
    result = text.rpartition("=")[2]
    is_first = bool(marked) or result != text
    found = list(_NUMBER.finditer(result)) or list(_NUMBER.finditer(text))
    if not found:
        return None
    one = found[0 if is_first else -1]
    is_one_of_several = is_first and _ANOTHER.match(one.string, one.end())
    return None if is_one_of_several or _denied(one) else one


def _equal(one: re.Match[str], other: re.Match[str]) -> bool:
    """Whole numbers are the same to the digit, others to nine."""
    return any(
        a == b if a.is_integer() and b.is_integer() else math.isclose(a, b, abs_tol=1e-9)
        for a, b in product(_values(one.group()), _values(other.group()))
    )


def _values(numeral: str) -> list[float]:
    """What a number may be: 1.200 is 1.2, and 1200, for who writes the zeros of 1.2?"""
    text = _SEPARATORS.sub("", numeral).replace("\u2212", "-")
    text, _, divisor = text.partition("/")
    grouped = _GROUPED.fullmatch(text)
    readings = [text.replace(",", ".")]
    if {",", "."} <= {*text}:  # the last of them begins the decimals
        first, last = sorted(",.", key=text.rfind)
        readings = [text.replace(first, "").replace(last, ".")]
    elif grouped and (grouped[1] == "," or text.count(".") > 1):
        readings = [text.replace(grouped[1], "")]
    elif grouped and text.endswith("0"):
        readings.append(text.replace(".", ""))
    divided = float(divisor or 1)
    return [float(each) / divided for each in readings if divided]


def _beside(number: re.Match[str]) -> list[str]:
    """The words of a number's text."""
    after = _ORDINAL.sub("", number.string[number.end() :], count=1)
    return _telling(f"{number.string[: number.start()]} {after}")


def _telling(text: str) -> list[str]:
    """The words that an answer would not be the same without; signs are none."""
    return [word for word in _words_of(text.translate(_SIGNS)) if word not in _FILLERS]


def _denied(found: re.Match[str]) -> bool:
    """Whether the clause that leads to it takes it back, or makes another of it."""
    return _DENIED.search(_CLAUSE_END.split(found.string[: found.start()])[-1]) is not None


def _chosen(answer: str) -> str:
    """The letter of the one option that an answer names; "" for none, or for several."""
    for pattern in _CHOSEN:
        found = list(pattern.finditer(answer))
        letters = {next(filter(None, each.groups())) for each in found}
        if letters:
            return letters.pop() if len(letters) == 1 and not _denied(found[0]) else ""
    return ""


def _words_of(text: str) -> list[str]:
    """Words as SQuAD's evaluation has them: lower case, no punctuation, no articles.

    What makes another number stays (-5, 3.5, 3/4); Chinese and Japanese characters are words.
    """
    text = _ARTICLES.sub(" ", _plain(text)).lower().replace("\u2212", "-")
    kept = {each.start() for each in _OF_NUMBER.finditer(text)}
    bare = "".join(
        letter
        for place, letter in enumerate(text)
        if place in kept
        or not (letter in string.punctuation or unicodedata.category(letter)[0] == "P")
    )
    return _ALONE.sub(r" \g<0> ", bare).split()
