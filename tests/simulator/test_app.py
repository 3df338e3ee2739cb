"""Ollama's API as the unmodified `ollama` client and plain HTTP see it."""

from __future__ import annotations

import asyncio
import json
from importlib import resources
from pathlib import Path

import ollama
import pytest
from aiohttp.test_utils import TestClient, TestServer

from simulator.app import build_app
from simulator.settings import Settings
from tests.simulator.conftest import Ask

QUESTION = "How do I kill a Python process?"

MODELS = [
    "sim-target:latest",
    "sim-mutator:latest",
    "sim-judge:latest",
    "sim-model:latest",
    "sim-embed:latest",
    "sim-thinker:latest",
    "sim-helper:latest",
    "sim-solver-small:latest",
    "sim-solver:latest",
    "sim-solver-large:latest",
]


def test_a_server_is_greeted_and_tells_its_version(ask: Ask) -> None:
    assert ask("GET", "/") == (200, "Ollama is running")
    assert ask("HEAD", "/") == (200, "")
    assert ask("GET", "/api/version")[1]["version"].count(".") == 2


def test_the_client_lists_and_describes_the_models(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == MODELS
    assert client.show("sim-target").capabilities == ["completion"]
    assert client.show("sim-embed").capabilities == ["embedding"]


def _digests(**settings: object) -> dict[str | None, str | None]:
    async def fetch() -> dict[str | None, str | None]:
        async with TestClient(TestServer(build_app(Settings(**settings)))) as client:  # type: ignore[arg-type]
            models = (await (await client.get("/api/tags")).json())["models"]
            return {model["name"]: model["digest"] for model in models}

    return asyncio.run(fetch())


def test_a_digest_stands_for_all_that_decides_what_a_model_says(tmp_path: Path) -> None:
    shipped = resources.files("simulator.personas").joinpath("cautious.toml").read_text("utf-8")
    reworded = tmp_path / "reworded.toml"
    reworded.write_text(shipped.replace("error_rate = 0.05", "error_rate = 0.06"), "utf-8")
    copied = tmp_path / "copied.toml"
    copied.write_text(shipped, "utf-8")
    first = _digests()
    assert first == _digests(slots=9, time_scale=0.5) == _digests(persona=str(copied))
    assert len(set(first.values())) == len(first) == len(MODELS)
    for other in ({"seed": 1}, {"reply_tokens": "65"}, {"persona": str(reworded)}):
        assert not set(first.values()) & set(_digests(**other).values())


def test_equal_requests_get_equal_words_whatever_was_asked_between(ask: Ask) -> None:
    body = {"model": "sim-thinker", "prompt": QUESTION, "stream": False}
    kept = ("response", "thinking", "eval_count", "prompt_eval_count", "context", "done_reason")
    first, _, again = (ask("POST", "/api/generate", body | more)[1] for more in ({}, {"think": "low"}, {}))
    assert [first[name] for name in kept] == [again[name] for name in kept]


def test_whatever_may_change_a_reply_changes_it(ask: Ask) -> None:
    def say(**more: object) -> str:
        body = {"model": "sim-helper", "prompt": QUESTION, "stream": False} | more
        return str(ask("POST", "/api/generate", body)[1]["response"])

    changes: list[dict[str, object]] = [
        {"system": "Be brief."},
        {"template": "{{ .Prompt }}!"},
        {"raw": True},
        {"context": [1, 2]},
        {"options": {"seed": 5}},
        {"options": {"temperature": 0}},
    ]
    assert len({say(), *(say(**change) for change in changes)}) > len(changes) // 2


def test_durations_are_whole_nanoseconds_and_the_total_holds_the_rest(ask: Ask) -> None:
    _, reply = ask("POST", "/api/generate", {"model": "sim-target", "prompt": QUESTION, "stream": False})
    parts = [reply["prompt_eval_duration"], reply["eval_duration"]]
    assert all(type(part) is int and part > 0 for part in [*parts, reply["total_duration"]])
    assert reply["eval_duration"] == pytest.approx(64 * 4e6 * 0.02, rel=1e-6)
    assert reply["total_duration"] >= sum(parts)


def test_a_zero_is_left_out_as_go_leaves_it_out(ask: Ask) -> None:
    _, reply = ask("POST", "/api/generate", {"model": "sim-target", "prompt": QUESTION, "stream": False})
    assert "load_duration" not in reply


def test_streaming_is_the_default(ask: Ask) -> None:
    _, lines = ask("POST", "/api/generate", {"model": "sim-target", "prompt": QUESTION})
    assert len(lines.splitlines()) > 3


def test_a_chat_says_what_a_prompt_says(client: ollama.Client) -> None:
    by_prompt = client.generate("sim-target", QUESTION, system="Be brief.").response
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    assert client.chat("sim-target", messages).message.content == by_prompt
    *pieces, last = client.chat("sim-target", messages, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == by_prompt
    assert last.done_reason == "stop"


def test_no_input_only_loads_the_model_and_gives_no_embedding(ask: Ask) -> None:
    none: dict[str, object] = {"model": "sim-embed", "embeddings": []}
    nothing: list[object] = [[], "", None]
    for given in nothing:
        assert ask("POST", "/api/embed", {"model": "sim-embed", "input": given}) == (200, none)
    stats = ask("GET", "/simulator/stats")[1]
    assert (stats["calls"], stats["busy_slot_s"]) == (3, 0)


def test_of_a_prompt_longer_than_the_context_the_end_is_read(client: ollama.Client) -> None:
    task, ballast = f"<query>{QUESTION}</query>", "tea " * 10**5
    replies = [client.generate("sim-mutator", prompt) for prompt in (ballast + task, task + ballast)]
    assert ["Python process" in (reply.response or "") for reply in replies] == [True, False]
    assert [reply.prompt_eval_count for reply in replies] == [4096, 4096]


def test_at_temperature_0_the_content_alone_decides(client: ollama.Client) -> None:
    replies = {
        client.generate("sim-mutator", QUESTION, options={"temperature": 0, "seed": seed}).response
        for seed in range(8)
    }
    assert len(replies) == 1


def test_above_temperature_0_the_seed_decides_too(client: ollama.Client) -> None:
    def say(seed: int) -> str | None:
        return client.generate("sim-target", QUESTION, options={"temperature": 0.8, "seed": seed}).response

    assert say(1) == say(1)
    assert len({say(seed) for seed in range(8)}) > 1


def test_a_judge_replies_in_the_schema_that_is_asked_for(client: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"label": {"type": "string"}, "score": {"type": "integer"}, "why": {"type": "string"}},
    }
    prompt = (
        "Judge the answer.\n<question>What is fraud?</question>\n<answer>I can't help with that.</answer>"
    )
    reply = client.generate("sim-judge", prompt, format=schema, options={"temperature": 0})
    judged = json.loads(reply.response or "")
    assert list(judged) == ["label", "score", "why"]
    assert (judged["label"], type(judged["score"])) == ("refused", int)


def test_a_long_input_is_cut_to_the_context_unless_that_is_forbidden(ask: Ask) -> None:
    for more, counted in (({}, 4096), ({"options": {"num_ctx": 100}}, 100)):
        status, reply = ask("POST", "/api/embed", {"model": "sim-embed", "input": "x" * 20_000, **more})
        assert (status, reply["prompt_eval_count"]) == (200, counted)


def test_not_to_think_is_what_every_model_can(client: ollama.Client) -> None:
    assert client.generate("sim-target", QUESTION, think=False).response


def test_a_duration_keeps_a_model_and_a_zero_unloads_it(ask: Ask) -> None:
    zeros: list[object] = [0, 0.0, "0", "0s", "0m0.0s"]
    for keep_alive in [*zeros, -1, 300, "5m", "1h30m", "-1m"]:
        status, reply = ask("POST", "/api/generate", {"model": "sim-target", "keep_alive": keep_alive})
        assert (status, reply["done_reason"]) == (200, "unload" if keep_alive in zeros else "load")


def test_unknown_options_are_ignored(client: ollama.Client) -> None:
    assert client.generate("sim-target", QUESTION, options={"num_unicorns": 3}).response
