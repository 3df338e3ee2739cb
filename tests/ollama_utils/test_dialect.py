"""What OpenAI-compatible servers refuse by name is left out or renamed, once a server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from ollama_utils.errors import BadRequestError, OllamaError
from ollama_utils.openai import OpenAIClient
from ollama_utils.types import Call
from tests.ollama_utils.scripted import Handler, ScriptedServer

SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}}
OPTIONS = {"num_predict": 9, "temperature": 0, "seed": 3, "top_k": 5, "frequency_penalty": 1}
ASKED = "How unexpected is an unknown seed?"
CALL = Call(
    model="m",
    prompt=ASKED,
    system="Be brief.",
    format=SCHEMA,
    options=OPTIONS | {"stop": ["."]},
    think=False,
)
SAID = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}
Refusal = tuple[int, Any]
"""A status and a body."""


def openai(message: str, param: str | None = None) -> Refusal:
    """As OpenAI and many others write it."""
    return 400, {"error": {"message": message, "type": "invalid_request_error", "param": param}}


def vllm(message: str) -> Refusal:
    return 400, {"object": "error", "message": message, "type": "BadRequestError", "param": None}


def mistral(*fields: str) -> list[dict[str, Any]]:
    kind, msg = "extra_forbidden", "Extra inputs are not permitted"
    return [{"type": kind, "loc": ["body", each], "msg": msg, "input": 3} for each in fields]


def llama_cpp(message: str) -> Refusal:
    text = f"\n---\nWhile executing CallExpression at line 1\nError: Jinja Exception: {message}"
    return 500, {"error": {"code": 500, "message": text, "type": "server_error"}}


MAX_TOKENS = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens'."
LITERAL = """1 validation error:
  {'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), 'msg': "Input should be 'low',
  'medium' or 'high'", 'input': 'none'}\n  File "/http_server.py", line 1, POST /v1/chat"""
DOUBAO = "`response_format.type` is not valid: invalid value: `json_schema`, supported values are:"
REFUSALS: list[tuple[str, str, Refusal]] = [
    # The rule that follows, an issue that quotes the refusal, and that.
    ("max_tokens=max_completion_tokens", "enoch3712/ExtractThinker#327", openai(MAX_TOKENS)),
    ("seed=", "partITech/php-mistral#76", (422, {"message": mistral("seed")})),
    ("stop=", "huggingface/smolagents#1211", openai("Unsupported parameter.", "stop")),
    ("reasoning_effort=", "router-for-me/CLIProxyAPI#1572", vllm(LITERAL)),
    (
        "reasoning_effort=",
        "NousResearch/hermes-agent#23088",
        (400, {"error": "Model m does not support parameter reasoningEffort."}),
    ),
    (
        "chat_template_kwargs=",
        "anomalyco/opencode#6648",
        (400, {"message": "property 'body.chat_template_kwargs' is unsupported"}),
    ),
    ("system=user", "huggingface/chat-ui#1386", vllm("System role not supported")),
    ("system=user", "microsoft/autogen#1037", vllm("Conversation roles must alternate user/...")),
    (
        "system=user",
        "withcatai/node-llama-cpp#263",
        llama_cpp("Only user and assistant roles are supported!"),
    ),
    (
        "system=user",
        "0xPlaygrounds/rig#788",
        openai("Developer instruction is not enabled for models/gemma-3-27b-it"),
    ),
    (
        "response_format=json_object",
        "ItzCrazyKns/Vane#969",
        openai("This response_format type is unavailable now"),
    ),
    ("response_format=json_object", "agno-agi/agno#2553", openai(DOUBAO, "response_format.type")),
]
ECHO = {"detail": [{"type": "value_error", "loc": ["body"], "input": {"seed": 3, "text": ASKED}}]}
NO_REFUSALS: list[Refusal] = [
    openai("temperature must be between 0 and 2", "temperature"),
    openai("Invalid 'seed': integer below minimum value", "seed"),
    openai("max_tokens is too large: 9. This model supports at most 8 completion tokens"),
    openai("The supported range of top_k is from 1 (inclusive) to 3."),
    openai("Unsupported value: 'n' does not support 2 with this model.", "n"),
    llama_cpp("Only user, system and assistant roles are supported!"),
    (400, ECHO),
    (500, "model runner has unexpectedly stopped"),
    (501, "This server does not support chats."),
    openai("Model 'seed-oss' is not allowed"),
    openai(f"this prompt is not allowed: {ASKED}"),
    (500, "unexpected error in the sampler: seed 12, temperature 0"),
]


def once(refusal: Refusal) -> Handler:
    """Refuses the first request, and answers all others."""
    answers = itertools.chain([refusal], itertools.repeat((200, SAID)))
    return lambda _: next(answers)


def ask(
    handler: Handler,
    *rules: str,
    question: Callable[[OpenAIClient], object] = lambda client: client.generate(CALL),
) -> tuple[object, list[dict[str, Any]], Sequence[str], list[str]]:
    """The reply or error to a question, the requests, the rules that hold, and the lines."""
    lines: list[str] = []
    with ScriptedServer(handler) as server:
        host = f"openai:{server.host}"
        with closing(OpenAIClient(host, request_fields=rules, report=lines.append)) as client:
            try:
                reply = question(client)
            except OllamaError as error:
                reply = error
            return reply, server.bodies, client.request_fields, lines


@pytest.mark.parametrize(("rule", "source", "refusal"), REFUSALS)
def test_a_request_that_is_refused_is_sent_again_by_a_rule_that_could_have_been_given(
    rule: str, source: str, refusal: Refusal
) -> None:
    _, bodies, learned, lines = ask(once(refusal))
    assert (len(bodies), learned, len(lines)) == (2, (rule,), 1), source
    assert f"refused {rule.partition('=')[0]} (" in lines[0]
    _, at_once, learned, lines = ask(lambda _: (200, SAID), rule)
    assert (at_once, learned, lines) == (bodies[1:], (rule,), [])


@pytest.mark.parametrize("refusal", NO_REFUSALS)
def test_an_error_that_refuses_no_field_is_raised_at_once(refusal: Refusal) -> None:
    error, bodies, learned, lines = ask(once(refusal))
    assert isinstance(error, OllamaError)
    assert (len(bodies), learned, lines) == (1, (), [])


def test_rules_say_what_is_sent() -> None:
    def sent(*rules: str) -> dict[str, Any]:
        return ask(lambda _: (200, SAID), *rules)[1][0]

    plain = sent()
    system, user = plain["messages"]
    renamed = {"max_completion_tokens": plain["max_tokens"], "random_seed": plain["seed"]}
    left = {k: plain[k] for k in plain.keys() - {"max_tokens", "seed", "stop"}}
    given = ("max_tokens=max_completion_tokens", " seed = random_seed ", "stop=", "x=y")
    for rules in itertools.permutations(given):
        assert sent(*rules) == left | renamed
    merged = {"role": "user", "content": f"{system['content']}\n\n{user['content']}"}
    assert sent("system=user") == plain | {"messages": [merged]}
    words = f"{ASKED}\n\nThe JSON object must follow this schema:\n{json.dumps(SCHEMA)}"
    asked = plain | {"messages": [system, {"role": "user", "content": words}]}
    as_json = {"type": "json_object"}
    assert sent("response_format=json_object") == asked | {"response_format": as_json}
    del asked["response_format"]
    assert sent("response_format=") == asked


@pytest.mark.parametrize(
    "rule",
    ["seed", "=x", "", "model=x", "messages=", "seed=stream", "system=", "response_format=text"],
)
def test_a_rule_that_cannot_be_read_is_an_error(rule: str) -> None:
    with pytest.raises(ValueError, match="expected FIELD=NAME or FIELD="):
        OpenAIClient("openai:http://127.0.0.1:1", request_fields=[rule])


def test_a_rule_is_kept_only_once_a_request_by_it_is_taken() -> None:
    words = "'max_tokens' is unknown, seed is not supported, and stop is unexpected"
    error, bodies, learned, lines = ask(lambda _: openai(words))
    assert isinstance(error, BadRequestError)
    assert (learned, lines) == ((), [])
    assert len(bodies) > 1


def test_embeddings_are_in_the_dialect_too_and_an_error_without_a_field_is_theirs() -> None:
    def strict(body: dict[str, Any]) -> tuple[int, object]:
        is_refused = "encoding_format" in body
        rows = {"data": [{"embedding": [1.0, 0.0]}]}
        return (422, {"detail": mistral("encoding_format")}) if is_refused else (200, rows)

    def embed(client: OpenAIClient) -> object:
        return client.embed("m", ["a"])

    reply, bodies, learned, _ = ask(strict, "system=user", question=embed)
    assert not isinstance(reply, OllamaError)
    assert (len(bodies), learned) == (2, ("encoding_format=", "system=user"))
    for words in ("This server does not support embeddings.", "Unsupported input."):
        error, bodies, *_ = ask(lambda _, words=words: (501, words), question=embed)  # type: ignore[misc] # a default
        assert isinstance(error, BadRequestError)
        assert len(bodies) == 1
