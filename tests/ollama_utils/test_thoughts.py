"""Thoughts are no answer, under whatever marks they stand in a reply, and on either wire."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_utils.errors import CutReplyError
from ollama_utils.thoughts import MARKS, Marks, read_marks, split_thoughts
from ollama_utils.types import Role
from ollama_utils.wires import open_client
from tests.ollama_utils.hostile import (
    CALL,
    CHAT,
    KINDS,
    RawServer,
    http,
    outcome,
    reply_to,
    streamed,
    whole,
)

THOUGHT = 'The user might mean harm. I cannot help with that.\nHmm, "kill" a process is fine.'
ANSWER = "Sure.\n\n1. Prepare it.\n"
TAGS = [marks for marks in MARKS if not marks[0].startswith("Here")]
EDGES = [
    # A reply, and its answer.
    ("<think></think>Yes.", "Yes."),
    ("\n <think>\nHm.\n</think>\n\n Yes.\n", "Yes.\n"),
    ("<think>a</think>\n<think>b</think>Yes.", "Yes."),
    ("</think>Yes.", "Yes."),
    ('Say "no"</think>\nYes.', "Yes."),
    ("Hm (or not)</think>**Yes.**", "**Yes.**"),
    ("<THINK>Hm.</Think>\n<answer>\nYes.\n</answer>", "<answer>\nYes.\n</answer>"),
    ("[THINK]Hm.[/THINK]<answer>Yes.", "<answer>Yes."),
    ("<|channel|>final<|message|>Yes.<|return|>", "Yes."),
    ("<answer>Yes.</answer>", "<answer>Yes.</answer>"),
    ("<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Yes."),
]
KEPT = [
    "Write <think>so</think>.",
    "Write <THINK>so</think>.",
    "A <think> tag opens.",
    "The </think> tag closes.",
    "`</think>` closes it, and '[/THINK]' too.",
    "\u201c</thought>\u201d closes it.",
    "It is closed (</think>), or **</think>**.",
    "```html\nx</reasoning>\n```\nThat closes it.",
    "Here is my thought process: first A, then B.",
    "Dear John,\nHere is my response:\nNo.",
    " \n Yes. \n",
    "",
]
plain = st.text().filter(lambda text: not any(mark in text for pair in MARKS for mark in pair))


@pytest.mark.parametrize("marks", MARKS)
def test_a_mark_that_opens_or_closes_alone_is_enough_where_it_is_no_words(marks: Marks) -> None:
    opening, closing_mark = marks
    closed, opened = f"{THOUGHT}\n{closing_mark}\n{ANSWER}", f"{opening}\n{THOUGHT}"
    if marks in TAGS:
        assert split_thoughts(closed) == (f"{THOUGHT}\n", ANSWER)
        assert split_thoughts(opened) == (f"\n{THOUGHT}", "")
    else:  # words, with which an answer may begin
        assert [split_thoughts(text) for text in (closed, opened)] == [("", closed), ("", opened)]


@given(st.sampled_from(MARKS), plain, plain)
def test_thoughts_and_an_answer_under_marks_are_these_two(
    marks: Marks, thought: str, answer: str
) -> None:
    said = split_thoughts(f"{marks[0]}{thought}{marks[1]}{answer}")
    assert said == (thought or marks[0], answer.lstrip())
    assert split_thoughts(answer) == ("", answer)


@pytest.mark.parametrize(("text", "answer"), [*EDGES, *((text, text) for text in KEPT)])
def test_marks_in_an_answer_are_part_of_it(text: str, answer: str) -> None:
    assert split_thoughts(text)[1] == answer


@pytest.mark.parametrize("kind", KINDS)
def test_thoughts_that_are_not_closed_are_a_reply_that_was_cut(kind: str) -> None:
    said = ["<thi", "nk>", THOUGHT]
    whole_error = reply_to(kind, whole(kind, "".join(said)), stream=False)
    for error in (whole_error, reply_to(kind, streamed(kind, said, [], "length"), stream=True)):
        assert type(error) is CutReplyError
        assert "only thought" in str(error)


@pytest.mark.parametrize("role", ["target", "mutator", "judge"])
@pytest.mark.parametrize(("think", "do"), [(None, "off"), (True, "off"), (False, "low or on")])
def test_a_model_that_only_thought_is_named_with_the_flags_of_its_role(
    role: Role, *, think: bool | None, do: str
) -> None:
    call = replace(CALL, role=role, think=think)
    reply = http("200 OK", whole("ollama", "", "Hm.", "length"))
    error = outcome("ollama", reply, lambda client: client.generate(call))
    flag = "--think" if role == "target" else f"--{role}-think"
    assert isinstance(error, CutReplyError)
    assert f"pass {flag} {do}" in str(error)
    assert "--think-budget" in str(error)


@pytest.mark.parametrize("wire", ["", "openai:"])
def test_a_users_own_marks_come_before_those_that_are_known(wire: str) -> None:
    marks = read_marks(["<musing> ... </musing>", "*...*"])
    assert marks == (("<musing>", "</musing>"), ("*", "*"))
    for said in (f"<musing>{THOUGHT}</musing>{ANSWER}", f"*{THOUGHT}*{ANSWER}"):
        body = whole("openai" if wire else "chat", said)
        with RawServer(http("200 OK", body)) as server:
            host = f"{wire}{server.host}"
            with closing(open_client(host, timeout_s=20, thought_marks=marks)) as client:
                assert client.generate(CHAT).text == ANSWER
            with closing(open_client(host, timeout_s=20)) as client:
                assert client.generate(CHAT if not wire else CALL).text == said


@pytest.mark.parametrize("text", ["", "...", "<a>", "<a>...", "...</a>", "<a>..</a>", " ... </a>"])
def test_marks_that_cannot_be_read_are_an_error_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"<musing>\.\.\.</musing>"):
        read_marks([text])
