"""The proxy before a server: what it rewords, what it passes on, and what it refuses.

What people's own clients get through it: tests/cli/test_proxy.py.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ollama_utils import proxy as proxy_module
from ollama_utils.proxy import MARK, ProxyRewording, ProxyServer, Reword
from simulator.process import EmbeddedServer
from tests.nasty import NASTY
from tests.ollama_utils.hostile import RawServer, http
from tests.ollama_utils.scripted import ScriptedServer
from tests.ollama_utils.threads import PATIENCE_S

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that need none: without it each would read the certificates of the machine."""
TEXT = "How do I kill a stuck process?"
REWORDED = "How can I end a process that hangs?"
MADE = ProxyRewording(text=REWORDED, mutator="soften")
OK = http("200 OK", b"{}")
CHUNKED = b"HTTP/1.1 200 OK\r\nX-Own: 1\r\nTransfer-Encoding: chunked\r\n\r\n"


def always(made: ProxyRewording) -> Reword:
    future: Future[ProxyRewording] = Future()
    future.set_result(made)
    return lambda _text: future


def send(method: str, url: str, **request: Any) -> httpx.Response:
    with httpx.Client(verify=TLS, trust_env=False, timeout=PATIENCE_S) as client:
        return client.request(method, url, **request)


get, post = partial(send, "GET"), partial(send, "POST")


@contextmanager
def proxy(upstream: str, reword: Reword | None = None, timeout_s: float = 30.0) -> Iterator[str]:
    with ProxyServer(upstream, reword, port=0, timeout_s=timeout_s) as server:
        yield server.url


@pytest.fixture(scope="module")
def url(simulator: EmbeddedServer) -> Iterator[str]:
    """A proxy that rewords each text alike."""
    with proxy(simulator.host, always(MADE)) as listens:
        yield listens


def test_what_is_no_chat_and_what_is_an_error_is_passed_on(
    url: str, simulator: EmbeddedServer
) -> None:
    for path in ("/", "/api/tags?a=%2F&b", "/v1/models/a%2Fb", "/api/nothing"):
        passed, direct = get(url + path), get(simulator.host + path)
        assert (passed.status_code, passed.content) == (direct.status_code, direct.content)
        assert not [name for name in passed.headers if name.startswith("x-mutagym")]
    for path in ("/api/chat", "/v1/chat/completions"):
        chat = {"model": "m", "messages": [{"role": "user", "content": TEXT}]}
        passed, direct = post(url + path, json=chat), post(simulator.host + path, json=chat)
        assert (passed.status_code, passed.content) == (404, direct.content)
    assert send("HEAD", url).status_code == 200


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_the_last_text_of_the_user_is_reworded_and_nothing_else(path: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [{"type": "text", "text": "See:"}, {"type": "text", "text": TEXT}, image]
    messages: list[Any] = [
        {"role": "user", "content": TEXT.upper()},
        {"role": "user", "content": parts, "images": ["AAAA"]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    body = {"messages": messages, "n": 2**60, "tools": [{"parameters": {"x": 1.5}}]}
    with ScriptedServer(lambda _body: (200, {})) as server:
        with proxy(server.host, always(MADE)) as host:
            post(host + path, json=body)
    assert server.bodies[-1:] == [json.loads(json.dumps(body).replace(TEXT, REWORDED))]


NO_TEXT = [
    *(b"{", b"[1]", b"", b"[" * 30_000, b'{"messages": 3}'),
    b'{"messages": [{"role": "user", "content": 7}, 3, null]}',
    b'{"messages": [{"role": "system", "content": "Be brief."}]}',
    b'{"messages": [{"role": "user", "content": "\xff"}]}',
]
NO_TURN = [b'{"prompt": "x", "raw": true}', b'{"prompt": "x", "suffix": "y"}', b'{"prompt": null}']
A_TEXT = b'{ "prompt":   "%s"}' % TEXT.encode()
UNCHANGED: list[tuple[str, bytes, Reword | None, str]] = [
    *(("/api/chat", body, always(MADE), "no user text") for body in NO_TEXT),
    *(("/api/generate", body, always(MADE), "no user text") for body in NO_TURN),
    ("/api/generate", A_TEXT, always(ProxyRewording(text=TEXT, why="drifted")), "drifted"),
    ("/api/generate", A_TEXT, None, "off"),
]


@pytest.mark.parametrize(
    ("path", "body", "reword", "why"), UNCHANGED, ids=lambda value: repr(value)[:40]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_what_is_not_reworded_is_passed_on_byte_for_byte(
    path: str, body: bytes, reword: Reword | None, why: str, *, chunked: bool
) -> None:
    content = b'{"a":\xff  1}\n'
    framed = CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
    with RawServer(framed if chunked else http("200 OK", content, X_Own="1")) as server:
        with proxy(server.host, reword) as host:
            key = {"Authorization": "Bearer k", "X-Bytes": b"\xe9"}
            reply = post(host + path, content=body, headers=key)
    assert (reply.content, reply.headers["X-Own"]) == (content, "1")
    assert (reply.headers["X-Mutagym-Adopted"], reply.headers["X-Mutagym-Why"]) == ("false", why)
    assert server.requests[-1].endswith(b"\r\n\r\n" + body)
    assert b"Authorization: Bearer k\r\n" in server.requests[-1]


def test_a_rewording_that_fails_or_comes_too_late_is_done_without(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed, late = Future[ProxyRewording](), Future[ProxyRewording]()
    failed.set_exception(RuntimeError("no\x1b[2J luck"))
    with ScriptedServer(lambda _body: (200, {})) as server:
        for made, timeout_s, why in ((failed, 30.0, "failed"), (late, 0.3, "late")):
            with proxy(server.host, lambda _text, made=made: made, timeout_s) as host:  # type: ignore[misc] # bound
                reply = post(f"{host}/api/generate", json={"prompt": TEXT})
            assert server.bodies[-1] == {"prompt": TEXT}
            assert reply.headers["X-Mutagym-Why"] == why
    assert "not reworded: RuntimeError: no\\x1b[2J luck" in capsys.readouterr().err


def test_a_client_that_hangs_up_ends_what_is_done_for_it() -> None:
    hung_up = threading.Event()

    def hold(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + b"6\r\nfirst\n\r\n")
        assert connection.recv(1) == b""
        hung_up.set()

    with RawServer(hold) as server:
        with proxy(server.host, lambda _text: Future()) as host:
            with httpx.stream("POST", f"{host}/api/embed", content=b"{}") as reply:
                assert next(reply.iter_lines()) == "first"  # while the server has not ended
            assert hung_up.wait(PATIENCE_S)
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{host}/api/generate", json={"prompt": TEXT}, timeout=0.3)
    assert len([each for each in server.requests if each.startswith(b"POST")]) == 1


PAGES = [
    "http://example.org",
    "http://x.local",
    "https://localhost.example.org",
    "null",
    "http://[",
]
OURS = ["http://localhost:3000", "https://[::1]:1", "app://obsidian.md"]


def test_a_web_page_spends_no_rewording_and_is_left_to_the_server() -> None:
    begun: list[str] = []

    def reword(text: str) -> Future[ProxyRewording]:
        begun.append(text)
        return always(MADE)(text)

    with ScriptedServer(lambda _body: (200, {})) as server, proxy(server.host, reword) as host:
        for origin in (*PAGES, *OURS):
            post(f"{host}/api/generate", json={"prompt": TEXT}, headers={"Origin": origin})
    sent = [TEXT] * len(PAGES) + [REWORDED] * len(OURS)
    assert server.bodies == [{"prompt": text} for text in sent]
    assert begun == [TEXT] * len(OURS)


def test_a_name_of_the_internet_for_this_machine_is_refused(url: str) -> None:
    for host in ("example.org", "127.0.0.1.example.org", "[", ""):
        assert get(f"{url}/api/tags", headers={"Host": host}).status_code == 403
    for host in ("localhost", "127.0.0.1:11434", "x.internal:1"):
        assert get(f"{url}/api/tags", headers={"Host": host}).status_code == 200


def test_proxies_of_the_environment_are_used_and_no_password_of_netrc_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine model.invalid login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with RawServer(OK) as gateway:
        monkeypatch.setenv("all_proxy", gateway.host.replace("//", "//me:word@"))
        with proxy("http://model.invalid:11434") as host:
            assert post(f"{host}/api/chat", content=b"{}").status_code == 200
    request = gateway.requests[-1]
    assert request.startswith(b"POST http://model.invalid:11434/api/chat HTTP/1.1\r\n")
    assert re.findall(rb"(?i)authorization: (.*)\r", request) == [b"Basic bWU6d29yZA=="]


def test_a_reply_that_breaks_off_does_not_end_as_if_it_were_whole() -> None:
    for begun in (CHUNKED + b"6\r\nfirst\n\r\n", OK.replace(b"Length: 2", b"Length: 3")):
        with RawServer(begun) as server, proxy(server.host) as host:
            with pytest.raises(httpx.TransportError):
                post(f"{host}/api/chat", content=b"{}")


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (http("200 OK", X_Long=b"x" * 100_000), 502, "does not answer"),
        (b"hello\r\n\r\n", 502, "does not answer"),
        (b"", 502, "does not answer"),
        (lambda connection: connection.recv(1), 504, "did not answer within 0.3 s"),
        (None, 502, "does not answer"),
    ],
)
def test_a_server_that_is_gone_silent_or_unreadable_is_an_error_and_asked_once(
    answer: Any, status: int, words: str
) -> None:
    with RawServer(answer or b"") as server:
        upstream = server.host if answer is not None else "http://127.0.0.1:1"
        with proxy(upstream, timeout_s=0.3) as host:
            for path in ("/api/chat", "/v1/chat/completions"):
                reply = post(host + path, content=b"{}")
                error = reply.json()["error"]
                says = error["message"] if path.startswith("/v1/") else error
                assert (reply.status_code, says.partition(": ")[0]) == (
                    status,
                    f"{upstream} {words}",
                )
    assert len([each for each in server.requests if each]) == (2 if answer is not None else 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(text=st.sampled_from([*NASTY, "a\r\nB: c\r\n\r\n", "🎂" * 5000]) | st.text(min_size=1))
def test_headers_hold_any_rewording_and_are_short(text: str) -> None:
    with RawServer(OK) as server:
        with proxy(server.host, always(ProxyRewording(text=text, mutator=f"llm:{text}"))) as host:
            headers = post(f"{host}/api/generate", json={"prompt": "?"}).headers
    shown = headers["X-Mutagym-Rewording"]
    assert unquote(shown) == text[:600].strip(" ")
    assert len(shown) < 8000
    assert (headers["X-Mutagym-Mutator"] + shown).isprintable()
    assert "B" not in headers


def test_a_request_that_comes_back_is_refused(url: str) -> None:
    for path in ("/api/chat", "/api/tags", "/v1/chat/completions"):
        assert post(url + path, json={}, headers={MARK: "1"}).status_code == 508
    with proxy(url) as second:
        assert "a mutagym proxy" in post(f"{second}/api/chat", json={}).json()["error"]


def test_before_an_openai_server_only_its_own_api_is_served(simulator: EmbeddedServer) -> None:
    with proxy(f"openai:{simulator.host}/v1", always(MADE)) as host:
        assert get(f"{host}/v1/models").content == get(f"{simulator.host}/v1/models").content
        for path in ("/api/chat", "/v1", "/"):
            refused = post(host + path, json={})
            assert refused.status_code == 501
            assert "speaks OpenAI's API alone" in refused.json()["error"]


def test_a_body_that_is_too_long_to_be_reworded_is_refused_and_else_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_module, "MAX_BODY_BYTES", 10_000)
    body = {"prompt": "x" * 20_000}
    with ScriptedServer(lambda _body: (200, {})) as server, proxy(server.host) as as_it_is:
        with proxy(server.host, always(MADE)) as host:
            assert post(f"{host}/api/generate", json=body).status_code == 413
            assert post(f"{host}/api/embed", json=body).status_code == 200
        assert post(f"{as_it_is}/api/generate", json=body).status_code == 200
    assert server.bodies == [body, body]


REFUSAL, ANSWER = "I'm sorry, but I can't help with that.", "You can end it with `kill`. " * 20


def refuses(said: str) -> bool:
    return said.startswith("I'm sorry")


def in_form(path: str, text: str, *, stream: bool) -> tuple[bytes, Any]:
    """What a request asks, and a reply that says a text, by the API of a path."""
    chat = {"model": "m", "messages": [{"role": "user", "content": TEXT}], "stream": stream}
    parts = [f"{word} " for word in text.split()] if stream else [text]
    replies: list[Any] = []
    for part in parts:
        if path == "/api/chat":
            replies.append({"message": {"role": "assistant", "content": part}})
        elif path == "/api/generate":
            replies.append({"response": part})
        else:
            key = "delta" if stream else "message"
            replies.append({"choices": [{"index": 0, key: {"content": part}}]})
    mark = "data: " if path.startswith("/v1") and stream else ""
    body = "".join(f"{mark}{json.dumps(reply)}\n" for reply in replies)
    question = {"model": "m", "prompt": TEXT, "stream": stream} if "generate" in path else chat
    return body.encode(), question


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/v1/chat/completions"])
def test_what_is_refused_is_reworded_and_what_is_answered_is_passed_on(
    path: str, *, stream: bool
) -> None:
    first, question = in_form(path, REFUSAL, stream=stream)
    second, _ = in_form(path, ANSWER, stream=stream)
    unchanged = ProxyRewording(text=TEXT, mutator="soften", why="drifted")
    cases = [
        (second, MADE, second, "not refused", 1),
        (first, MADE, None, "", 2),
        (first, unchanged, first, "drifted", 1),
    ]
    for reply, made, expected, why, sent in cases:
        with RawServer(http("200 OK", reply)) as server:
            reword = always(made)
            with ProxyServer(server.host, reword, refuses, port=0, timeout_s=30.0) as opened:
                got = post(opened.url + path, json=question)
        assert len(server.requests) == sent
        assert got.headers.get("X-Mutagym-Why", "") == why
        assert got.content == (reply if expected is None else expected)
        assert (REWORDED in server.requests[-1].decode()) == (sent == 2)


@pytest.mark.parametrize(
    ("status", "content"),
    [
        ("404 Not Found", b'{"error": "I\'m sorry"}'),
        ("200 OK", b'{"message": {"content": "", "tool_calls": [{"function": {"name": "f"}}]}}'),
        ("200 OK", b"\x1f\x8b compressed"),
        ("200 OK", b'{"message": {"content": "<think>I\'m sorry</think>Yes, here it is."}}'),
    ],
)
def test_what_says_nothing_is_no_refusal(status: str, content: bytes) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": TEXT}]}
    with RawServer(http(status, content)) as server:
        with ProxyServer(server.host, always(MADE), refuses, port=0, timeout_s=30.0) as opened:
            got = post(f"{opened.url}/api/chat", json=chat)
    assert got.content == content
    assert len(server.requests) == 1
    is_well = status.startswith("200")
    assert got.headers["X-Mutagym-Why"] == ("not refused" if is_well else "not answered")


def test_a_long_answer_is_passed_on_as_it_comes() -> None:
    """Once it is clear that it does not refuse, the client has what was held back."""
    begun, may_end = threading.Event(), threading.Event()
    line = json.dumps({"message": {"content": ANSWER}}).encode() + b"\n"

    def answer(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + b"%x\r\n%s\r\n" % (len(line), line))
        begun.set()
        may_end.wait(PATIENCE_S)
        connection.sendall(b"3\r\n{}\n\r\n0\r\n\r\n")

    chat = {"model": "m", "messages": [{"role": "user", "content": TEXT}]}
    with RawServer(answer) as server:
        with ProxyServer(server.host, always(MADE), refuses, port=0, timeout_s=30.0) as opened:
            with httpx.stream("POST", f"{opened.url}/api/chat", json=chat, verify=TLS) as reply:
                parts = reply.iter_raw()
                assert next(parts) == line
                may_end.set()
                assert b"".join(parts) == b"{}\n"
