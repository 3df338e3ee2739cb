"""Tells by its form what is no rewording of a query: an answer, a remark about it, or another question.

A question is reworded as a question or as a request to be told, a request as a request or a question; words
of the person who asks may stand around it, an answer may not. A why stays a why, names and numbers stay, and
so does whether something is denied: small models often ask something else about the same things, which an
encoder finds similar. English forms and question marks alone are known: of a query whose form is not known,
little is told. What is told wrongly costs a rewording, no more: the query is asked as it was.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Literal


def _any(*groups: str) -> str:
    """A pattern for any of the words in groups that are separated by blanks."""
    return f"(?:{'|'.join(word for group in groups for word in group.split())})"


_END = r"[.!?\uff1f\u3002]"
_SENTENCE_END = re.compile(
    rf"(?<={_END})(?<!\b\w\.)(?<!\b(?:Mr|Ms|Dr|St|vs)\.)(?<!\bMrs\.)[\"'\u201d\u2019)]*"
    r"(?:\s+(?=[^a-z\s])|(?<=[\uff1f\u3002]))|\n+"
)
_LEADS = (
    _any("so and but then now okay hello hi hey also please kindly about roughly exactly excuse\\sme"),
    r"as an? [^,]{1,40}",
    r"(?:for|in|to) [^,:]{1,60}",
    r"(?:if|when) [^,]{1,80}",
    r"i(?:['\u2019]m| am) [^,.]{1,60}",
    r"[\w ]{1,40}[:;]",
)
_LEAD = rf"\A[\W_]*(?:(?:{'|'.join(_LEADS)})[,!]?\s+)*"
"""What may stand before the words that ask, in one sentence with them."""
_ASKING = _any("how why where who whom whose which what what['\u2019]s")
_AUXILIARY = _any(
    "do does did can could may might must am is are was were will would shall should has have had",
    "isn['\u2019]t aren['\u2019]t don['\u2019]t doesn['\u2019]t can['\u2019]t",
)
_PREPOSITION = _any("at by for from in of on to under with")
_SUBJECT = _any("i you we he she it they one people somebody someone there a an the my this that these")
_TELL = _any(
    "tell explain describe list name show give provide share outline discuss define suggest recommend",
    "compare teach help advise clarify summari[sz]e identify let\\sme\\sknow inform elaborate specify state",
    "set\\sout let\\sme\\shave",
)
_WISH = (
    r"i(?:['\u2019]d| would) (?:like|love|appreciate|be grateful)|i (?:want|need|wish|wonder)|"
    r"i(?:['\u2019]m| am) (?:not sure|"
    + _any("wondering curious interested looking trying asking seeking unsure")
    + ")"
)
_DO = _any(
    "write make create translate find draft generate design plan fix solve calculate walk compose invent",
    "imagine pretend act convert complete continue produce craft develop prepare",
)
_THING = _any(
    "ways? steps? methods? tips ideas reasons? causes? meaning definition instructions advice details"
)
_PRAISE = _any("best good great easiest fastest simplest safest cheapest effective")
_TOLD = _any("is are was were include includes can could will should")

_ASKED = tuple(
    re.compile(_LEAD + pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"(?:{_PREPOSITION} )?(?:{_ASKING}|when {_AUXILIARY}|{_AUXILIARY} {_SUBJECT})\b",
        rf"{_AUXILIARY} [^.]*\Z",
        rf"(?:{_TELL}|{_WISH})\b(?!:)",
        rf"(?:(?:the|a|some|any) )?(?:{_PRAISE} )?{_THING}\b(?!.*\b{_TOLD}\b)",  # as in a search box
    )
)
_ORDER = re.compile(rf"{_LEAD}{_DO}\b(?!:)", re.IGNORECASE)
_OWN_WORDS = re.compile(
    r"\A\W*(?:(?:it(?:['\u2019]s| is)|this is|that is) (?:for|part of)|excuse me|many thanks|i['\u2019]\w+|"
    + _any("i my we our for as thank thanks hello hi hey please sorry help")
    + r")\b",
    re.IGNORECASE,
)
_YES_OR_NO = re.compile(r"\A\W*(?:yes|no|yeah|nope|true|false)\b\s*[,.!:-]", re.IGNORECASE)
_REPLY = re.compile(
    r"\bi(?:['\u2019]ll| can| could| will) (?:try to )?(?:help|tell|show|assist) (?:you|with)\b"
    r"|\bi(?:['\u2019]d| would)? (?:recommend|suggest)\b|\bi(?:['\u2019]m| am) afraid (?:that|i)\b"
    r"|\bnot sure (?:what|how) to (?:answer|tell|say)\b",
    re.IGNORECASE,
)
"""Words of whoever replies, beside a question or around it; within one they are the asker's."""
_BY_ONESELF = re.compile(r"\A\W*i\b", re.IGNORECASE)
_REMARK = re.compile(
    rf"\b{_any('the this your that original given following similar new')} "
    rf"{_any('question sentence phrase prompt text statement')}\b"
    rf"|\b{_any('query re-?writ(?:e|ten|ing) re-?word(?:ed|ing)?', '(?:re-?ph|paraph)ras(?:e|ed|ing)')}\b",
    re.IGNORECASE,
)
_MOST_TOLD_CHARS = 60
"""So much may follow what is asked ("Plain words are enough."); nothing may be told before it."""


_MANNER = (
    r"\bhow\b(?! (?:many|much|long|often|old|far|come))|\b"
    + _any("ways? methods? steps? procedures? strateg(?:y|ies) techniques? approach instructions? tips")
    + r"\b|\bwhat (?:can|could|should|would|do|must) "
    + _SUBJECT
    + r" (?:do|use)\b(?! (?:if|when|about))|\bwhat (?:can be done|helps)\b"
)
_KINDS = {
    "manner": re.compile(_MANNER, re.IGNORECASE),
    "reason": re.compile(
        r"\bwhy\b|\bhow come\b|\bwhat (?:makes|made|led|leads|causes|caused|drives|drove)\b|\b"
        + _any("reasons? causes? purpose motivations? motives? rationale justification")
        + r"\b",
        re.IGNORECASE,
    ),
    "place": re.compile(
        r"\b" + _any("where places? location address which whereabouts shops? stores?") + r"\b", re.IGNORECASE
    ),
    "person": re.compile(r"\b" + _any("who whom whose person people name") + r"\b", re.IGNORECASE),
    "time": re.compile(r"\b" + _any("when date time year day birthday") + r"\b", re.IGNORECASE),
    "number": re.compile(
        r"\bhow (?:many|much|long|often|old|far)\b|\b" + _any("number amount cost price age") + r"\b",
        re.IGNORECASE,
    ),
}
"""What kind of thing a question asks for, by words that ask for it."""
_ASPECTS = re.compile(
    r"\bhow many\b|\b"
    + _any(
        "who differences? opposite examples? effects? impacts? types? kinds? number importance role",
        "history origins? ingredients? status",
        "treatment consequences? benefits? risks? advantages? disadvantages? problem opinion",
    )
    + r"\b|\bthe most\b(?! \w+ (?:way|method|means|approach)\b)",
    re.IGNORECASE,
)
"""What of a thing may be asked for instead of the thing."""
_ASKED_FOR = re.compile(
    rf"{_LEAD}(?:{_TELL}(?: (?:to )?me)? )?"
    r"(?P<word>how (?:many|much|long|often|old|far)|how|why|where|who|whom|when|what)\b",
    re.IGNORECASE,
)
_ASKED_WITHIN = (
    rf"\b(?:how|why|what)\b|\b(?:know|ask|{_TELL})(?: (?:me|us))? (?:{_ASKING}|when)\b"
    rf"|\b(?:(?:any|some)(?:one|body)|possible to)(?: please)? {_TELL}\b"
)
"""What asks for more than yes or no in the middle of a sentence."""
_WHETHER = re.compile(
    rf"\A\W*(?:(?!(?:{_ASKING}|when)\b)[^?]*[,:;]\s+)?{_AUXILIARY} (?!(?:you|there)\b)"
    rf"(?!.*(?:{_ASKED_WITHIN}))",
    re.IGNORECASE | re.DOTALL,
)
_TELL_WHETHER = re.compile(r"\b(?:if|whether)\b|\b(?:is|are) there\b", re.IGNORECASE)
"""A question that yes or no answers, and how one asks to be told."""
_KIND_OF = {
    "how": "manner",
    "why": "reason",
    "where": "place",
    "who": "person",
    "whom": "person",
    "when": "time",
}
_DENIED = re.compile(
    r"n['\u2019]t\b|\b"
    + _any(
        "not no never none cannot without avoid(?:ing)? prevent(?:s|ing)? instead neither",
        "impossible unable incapable",
    )
    + r"\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<![.?!]\s)(?<!\A)\b(?!I\b)[A-Z][\w-]+|\b\d[\d.,]*\d\b|\b\d\b")
_WORD = re.compile(r"[\w-]+")
_LITTLE_WORD = re.compile(
    _any(
        "a an the and or but if so then than as to of in on at for by from with into over about i you he she",
        "it we they one me my your his her its our their us them myself yourself this that these those there",
        "be been not no never cannot some any very just exactly best good way ways get s t d m re ve ll",
        "don isn aren doesn couldn shouldn won",
    )
    + rf"|{_ASKING}|when|{_AUXILIARY}|{_TELL}|please",
    re.IGNORECASE,
)
"""Words that a question can do without, or put in another way, and still ask for the same."""


def _aspects(text: str) -> set[str]:
    return {aspect.casefold().removesuffix("s") for aspect in _ASPECTS.findall(text)}


def _names_missing(text: str, query: str) -> bool:
    """Whether a name or a number of the query is not in the text; a title, all in capitals, has no names."""
    names = {name.casefold() for name in _NAME.findall(query)}
    if 2 * len(names) > len(_WORD.findall(query)):
        return False
    return not names <= {word.casefold() for word in _WORD.findall(text)}


def _asks_otherwise(text: str, query: str) -> bool:
    """Whether what asks in a text asks for something else than the query, however similar they are.

    It does where it denies what the query does not, or the other way, and where it asks for another kind of
    thing: for the way instead of the reason, or for anything but yes or no.
    """
    if bool(_DENIED.search(query)) != bool(_DENIED.search(text)):
        return True
    if all(_WHETHER.match(each) for each in _sentences(query) if _asks(each, (*_ASKED, _ORDER))):
        whether = any(map(_WHETHER.match, _sentences(text))) or _TELL_WHETHER.search(text)
        return not whether and _has_form(text, _ASKED)  # of a form that is not known, nothing is told
    asked = next(filter(None, map(_ASKED_FOR.match, _sentences(query))), None)
    if asked is None:
        return False
    word = " ".join(asked["word"].lower().split())
    if word == "what":
        others = (_KINDS["manner"], _KINDS["reason"])
        if any(other.search(text) and not other.search(query) for other in others):
            return True
        return not _aspects(text) <= _aspects(query)
    return not _KINDS[_KIND_OF.get(word, "number")].search(text)


def not_a_rewording(text: str, query: str) -> Literal["", "answered", "commented", "strayed"]:
    """Why a model's text is no rewording of a query; empty where its form does not say that it is none.

    `commented`: it speaks of the query, or of the task to reword it. `answered`: the query asks for something
    and the text does not, or it tells what is no word of the person who asks. `strayed`: it
    asks for something else, by its words.

    Args:
        text: one rewording, as `cleaning.clean` leaves it.
        query: what it is to be a rewording of.
    """
    if _REMARK.search(text) and not _REMARK.search(query):
        return "commented"
    known, sentences = _sentences(query), _sentences(text)
    forms = (*_ASKED, _ORDER) if any(map(_ORDER.match, known)) else _ASKED
    if not _REPLY.search(query) and any(_replies(each, forms) for each in sentences):
        return "answered"
    if text == query or not any(_asks(each, forms) for each in known):
        return ""
    first = next((place for place, each in enumerate(sentences) if _asks(each, forms)), None)
    if first is None or (_YES_OR_NO.match(text) and not _YES_OR_NO.match(query)):
        return "answered"
    told = [
        len(each) * (place > first) or _MOST_TOLD_CHARS + 1
        for place, each in enumerate(sentences)
        if each not in known
        and not each.endswith("!")
        and not _asks(each, forms)
        and not _OWN_WORDS.match(each)
    ]
    if sum(told) > _MOST_TOLD_CHARS:
        return "answered"
    asked = " ".join(each for each in sentences if _asks(each, forms))
    return "strayed" if _names_missing(text, query) or _asks_otherwise(asked, query) else ""


def leaves_out_words(text: str, query: str) -> bool:
    """Whether a word of a query that carries meaning is in the text in no inflection: dropped, or replaced.

    That may be by a synonym, by a derived word ("seller" for "sell") or by another thing; only meaning tells.
    False where the query has no English form.
    """
    if not _has_form(query, (*_ASKED, _ORDER)):
        return False
    words = _meaningful(text)
    missing = _meaningful(query) - words
    there = frozenset().union(*map(_lemmas, words)) if missing else frozenset()
    return any(there.isdisjoint(_lemmas(word)) for word in missing)


def _meaningful(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.casefold()) if not _LITTLE_WORD.fullmatch(word)}


@functools.lru_cache(maxsize=4096)
def _lemmas(word: str) -> frozenset[str]:
    """What a word may be a form of: "leaves" of "leaf" and of "leave"; by rule where no dictionary has it."""
    from lemminflect import getAllLemmas, getAllLemmasOOV  # type: ignore[import-untyped]

    found = getAllLemmas(word) or {**getAllLemmasOOV(word, "NOUN"), **getAllLemmasOOV(word, "VERB")}
    return frozenset({word}.union(*found.values()))


def _replies(sentence: str, forms: Sequence[re.Pattern[str]]) -> bool:
    """Whether it has words of a reply, as what it says itself and not as what it asks for."""
    said = _BY_ONESELF.match(sentence) or not _asks(sentence, forms)
    return bool(said and _REPLY.search(sentence))


def _has_form(text: str, forms: Sequence[re.Pattern[str]]) -> bool:
    return any(form.match(each) for each in _sentences(text) for form in forms)


def _asks(sentence: str, forms: Sequence[re.Pattern[str]]) -> bool:
    """Whether it ends as a question, or has one of the forms of what people ask."""
    if sentence.rstrip("\"'\u201d\u2019) ").endswith(("?", "\uff1f")):
        return True
    return any(form.match(sentence) for form in forms)


def _sentences(text: str) -> list[str]:
    return [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]
