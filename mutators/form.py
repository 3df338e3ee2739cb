"""Recognises texts that do not reword a query: answers to it, and questions of another kind.

An encoder finds "Why should hens fly?" and "Why should hens not fly?" as similar as two wordings of
one question. So what asks in a rewording must ask for a way, for a reason or for neither, as the
query does, and deny something exactly where the query does. It knows English only, and passes every
text where the query is no question. A rewording that is rejected wrongly costs one step.

Fitted by reading 333 rewordings by SmolLM2-135M of 50 of XSTest's safe prompts, all of similarity
.8 or more: it rejects 27 of the 46 that ask something else, and 1 of the 287 others. Rules about
lost names, remarks and words of a reply rejected as many good rewordings as bad ones.
"""

from __future__ import annotations

import re
from typing import Literal

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=\uff1f)|\n+")
_REQUEST = re.compile(
    r"(?:[^,:]{1,80}[,:] )?(?:please |kindly )?(?:(?:at|in|for|from|to) )?"
    r"(?:how|what|why|where|when|who|whom|whose|which|whether|tell|explain|describe|list|name|show"
    r"|give|provide|share|outline|define|suggest|recommend|compare|teach|help|advise|clarify"
    r"|summari[sz]e|identify|am|is|are|was|were|do|does|did|has|have|can|could|may|might|must"
    r"|should|will|would"
    r"|i(?:['\u2019]d| would)? (?:like|love|appreciate|want|need|wish|wonder)"
    r"|i(?:['\u2019]m| am) (?:wondering|curious|interested|looking|trying|asking))\b(?!:)",
    re.IGNORECASE,
)
"""A request, or a question without its mark."""
_MANNER = re.compile(
    r"\bhow\b(?! (?:many|much|long|often|old|far|come)\b)"
    r"|\b(?:ways?|methods?|steps?|procedures?|process (?:for|of)|strateg(?:y|ies)"
    r"|techniques?|approach|instructions?|tips)\b"
    r"|\bwhat (?:can|could|should|would|do|does|must) \w+ (?:do|use)\b"
    r"|\bwhat (?:can be done|helps)\b|\bby what means\b",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"\bwhy\b|\bhow come\b|\b(?:reasons?|causes?|purpose|motives?|motivations?|rationale)\b"
    r"|\bwhat (?:is it that )?(?:makes|made|led|leads|caused|drives|drove|prevents|stops)\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(
    r"n['\u2019]t\b|\b(?:not|no|never|none|neither|cannot|without|instead|avoid(?:ing)?"
    r"|prevent(?:s|ing)?|impossible|unable|inability|incapable)\b",
    re.IGNORECASE,
)
_ASPECT = re.compile(
    r"\b(?:history|origins?|opposite|differences?|examples?|effects?|impacts?|types?|consequences?)\b"
    r"|\bthe most\b(?! \w+ (?:way|method|means|approach|strategy)\b)",
    re.IGNORECASE,
)
"""What of a thing may be asked for in place of the thing."""


def not_a_rewording(text: str, query: str) -> Literal["", "answered", "strayed"]:
    """Why a model's text is no rewording of a query; empty where its form does not say so.

    `answered`: the query is a question, and the text asks nothing. `strayed`: it asks for something
    else. A question may be reworded as a request ("Tell me how ...").

    Args:
        text: one rewording, as `cleaning.clean` leaves it.
        query: what it is to be a rewording of.
    """
    question = " ".join(filter(_is_question, _sentences(query)))
    if not question:
        return ""
    sentences = _sentences(text)
    asking = [*filter(_is_question, sentences)] or [*filter(_REQUEST.match, sentences)]
    if not asking:
        return "answered"
    asked = " ".join(asking)
    for sign in (_MANNER, _REASON, _DENIAL):
        if bool(sign.search(asked)) != bool(sign.search(question)):
            return "strayed"
    return "strayed" if _ASPECT.search(asked) and not _ASPECT.search(query) else ""


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in _SENTENCE_END.split(text)]


def _is_question(sentence: str) -> bool:
    return sentence.rstrip("\"'\u201d\u2019) ").endswith(("?", "\uff1f"))
