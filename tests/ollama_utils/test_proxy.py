"""The proxy before a server: what it rewords, what it passes on, and what it refuses."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import ollama
import openai
import pytest

from ollama_utils.proxy import (
    MARK,
    MOST_TOLD_BYTES,
    ProxyError,
    ProxyRewording,
    ProxyServer,
    Reword,
)
from ollama_utils.user_text import find_user_text
from simulator.process import EmbeddedServer
from tests.nasty import NASTY
from tests.ollama_utils.scripted import ScriptedServer

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that need none: without it each would read the certificates of the machine, 20 ms long."""
TEXT = "How do I kill a stuck process?"
REWORDED = "How can I end a process that hangs?"
MADE = ProxyRewording(text=REWORDED, mutator="soften")
TIMED = ("created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def done(made: ProxyRewording) -> Future[ProxyRewording]:
    future: Future[ProxyRewording] = Future()
    future.set_result(made)
    return future


def always(made: ProxyRewording) -> Reword:
    return lambda _text: done(made)


def send(method: str, url: str, **request: Any) -> httpx.Response:
    with httpx.Client(verify=TLS, trust_env=False) as client:
        return client.request(method, url, **request)


get, post, head = partial(send, "GET"), partial(send, "POST"), partial(send, "HEAD")


@contextmanager
def proxy(upstream: str, reword: Reword | None, timeout_s: float = 30.0) -> Iterator[str]:
    with ProxyServer(upstream, reword, port=0, timeout_s=timeout_s) as server:
        yield server.url


@pytest.fixture(scope="module")
def url(simulator: EmbeddedServer) -> Iterator[str]:
    """A proxy that rewords each text alike."""
    with proxy(simulator.host, always(MADE)) as listens:
        yield listens


@contextmanager
def raw_server(reply: bytes, *, hold: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each connection's request with these; and what it was sent.

    Args:
        reply: all that it says.
        hold: whether it then waits for the client to hang up; not after a GET, by which a proxy looks for a
            circle.
    """
    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                heard.append(whole_request(connection))
                connection.sendall(reply)
                if hold and heard[-1].startswith(b"POST") and not connection.recv(1):
                    heard.append(b"hung up")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def whole_request(connection: socket.socket) -> bytes:
    """The head of a request, and as many bytes of its body as it says."""
    said = b""
    while b"\r\n\r\n" not in said and (more := connection.recv(65536)):
        said += more
    head, _, begun = said.partition(b"\r\n\r\n")
    body = bytearray(begun)
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while length and len(body) < int(length[1]) and (more := connection.recv(65536)):
        body += more
    return head + b"\r\n\r\n" + bytes(body)


def untimed(reply: Any) -> dict[str, Any]:
    return {key: value for key, value in reply.model_dump().items() if key not in TIMED}


@pytest.mark.parametrize("method", ["chat", "generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_ollama_client_gets_what_the_server_answers_to_the_rewording(
    url: str, simulator: EmbeddedServer, method: str, *, stream: bool
) -> None:
    def said(host: str, text: str) -> list[dict[str, Any]]:
        asked = (
            {"prompt": text}
            if method == "generate"
            else {"messages": [{"role": "user", "content": text}]}
        )
        with ollama.Client(host, trust_env=False, verify=TLS) as client:
            reply = getattr(client, method)(
                "sim-target", **asked, options={"num_predict": 9}, stream=stream
            )
            return [untimed(part) for part in (reply if stream else [reply])]

    assert said(url, TEXT) == said(simulator.host, REWORDED) != said(simulator.host, TEXT)


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_client_gets_what_the_server_answers_to_the_rewording(
    url: str, simulator: EmbeddedServer, *, stream: bool
) -> None:
    def said(host: str, text: str) -> list[Any]:
        with openai.OpenAI(base_url=f"{host}/v1", api_key="none", max_retries=0) as client:
            reply: Any = client.chat.completions.create(
                model="sim-target",
                messages=[{"role": "user", "content": text}],
                max_tokens=9,
                stream=stream,
            )
            parts = list(reply) if stream else [reply]
        return [
            part.choices[0].delta.content if stream else part.choices[0].message for part in parts
        ]

    assert said(url, TEXT) == said(simulator.host, REWORDED) != said(simulator.host, TEXT)


def test_what_is_no_chat_is_passed_on(url: str, simulator: EmbeddedServer) -> None:
    for path in ("/", "/api/version", "/api/tags"):
        passed, direct = get(url + path), get(simulator.host + path)
        assert (passed.status_code, passed.content) == (direct.status_code, direct.content)
        assert not [name for name in passed.headers if name.startswith("x-mutagym")]
    with ollama.Client(url, trust_env=False, verify=TLS) as client:
        assert client.show("sim-target").capabilities == ["completion"]
        assert len(client.embed("sim-embed", ["tea", "coffee"]).embeddings) == 2
        assert client.ps().models
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as openai_client:
        assert "sim-target:latest" in [model.id for model in openai_client.models.list()]
    assert head(url).status_code == head(simulator.host).status_code == 200


def test_16_calls_at_once_are_reworded_side_by_side(simulator: EmbeddedServer) -> None:
    everyone = threading.Barrier(16)

    def meet(text: str) -> ProxyRewording:
        everyone.wait(30)  # nobody goes on before all are here
        return ProxyRewording(text=f"Please: {text}", mutator="please")

    def said(host: str, text: str) -> str:
        with ollama.Client(host, trust_env=False, verify=TLS) as client:
            return str(client.generate("sim-target", text).response)

    texts = [f"{TEXT} ({k})" for k in range(16)]
    with (
        ThreadPoolExecutor(16) as pool,
        ThreadPoolExecutor(16) as clients,
        proxy(simulator.host, lambda text: pool.submit(meet, text)) as host,
    ):
        replies = list(clients.map(lambda text: said(host, text), texts))
    assert replies == [said(simulator.host, f"Please: {text}") for text in texts]


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_text_parts_of_the_last_user_message_are_reworded_and_nothing_else(path: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": 1.5, "n": 2**60}}}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [{"type": "text", "text": "One?"}, image, {"type": "text", "text": "Two?"}]
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "function": {"name": "f"}}],
    }
    rest = [call, {"role": "tool", "tool_call_id": "1", "content": "3"}]
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Before."}, {}, *rest],
        "tools": tools,
    }
    body["messages"][1] = {"role": "user", "content": parts, "images": ["AAAA"]}  # type: ignore[index] # a list

    def shout(text: str) -> Future[ProxyRewording]:
        return done(ProxyRewording(text=text.upper(), mutator="shout"))

    with ScriptedServer(lambda _body: (200, {})) as server, proxy(server.host, shout) as host:
        reply = post(host + path, json=body)
        (sent,) = [heard for heard in server.bodies if heard]
    changed = json.dumps(body).replace("One?", "ONE?").replace("Two?", "TWO?")
    assert sent == json.loads(changed)
    assert reply.headers["X-Mutagym-Adopted"] == "true,true"
    assert reply.headers["X-Mutagym-Rewording"] == "ONE?,TWO?"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1]",
        b'"text"',
        b"",
        b"[" * 30_000,
        b'{"messages": 3}',
        b'{"messages": [{"role": "user", "content": 7}, 3, null]}',
        b'{"messages": [{"role": "system", "content": "Be brief."}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "n": 1e999}',
        b'{"messages": [{"role": "user", "content": "\\xff"}]}'.replace(b"\\xff", b"\xff"),
    ],
    ids=repr,
)
def test_a_request_without_a_user_s_text_is_passed_on_byte_for_byte(body: bytes) -> None:
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno"
    with raw_server(refused) as (host, heard), proxy(host, always(MADE)) as listens:
        reply = post(f"{listens}/api/chat", content=body)
    assert (reply.status_code, reply.text, reply.headers["X-Mutagym-Why"]) == (
        400,
        "no",
        "no user text",
    )
    assert body[:1000] in heard[-1].partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("field", [{"raw": True}, {"suffix": "end"}, {"prompt": None}])
def test_a_prompt_that_is_no_turn_of_a_user_s_is_left_as_it_is(field: dict[str, Any]) -> None:
    assert find_user_text("/api/generate", json.dumps({"prompt": TEXT} | field).encode()) is None


def test_a_rewording_that_is_not_adopted_leaves_the_request_as_it_was() -> None:
    body = b'{"model":  "m", "prompt": "What?"}'
    not_adopted = ProxyRewording(text="What?", mutator="shorten", why="drifted")
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with raw_server(answer) as (host, heard), proxy(host, always(not_adopted)) as listens:
        headers = post(f"{listens}/api/generate", content=body).headers
    assert heard[-1].endswith(body)
    assert (headers["X-Mutagym-Adopted"], headers["X-Mutagym-Why"]) == ("false", "drifted")
    assert "X-Mutagym-Rewording" not in headers


def test_a_rewording_that_fails_or_comes_too_late_is_done_without(
    simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    failed: Future[ProxyRewording] = Future()
    failed.set_exception(RuntimeError("no\x1b[2J luck"))
    for made, timeout_s, why in ((failed, 30.0, "failed"), (Future[ProxyRewording](), 0.3, "late")):
        with proxy(simulator.host, lambda _text, made=made: made, timeout_s) as host:  # type: ignore[misc] # bound
            asked = {"model": "sim-target", "prompt": TEXT, "stream": False}
            reply = post(f"{host}/api/generate", json=asked)
        direct = post(f"{simulator.host}/api/generate", json=asked)
        assert reply.json()["response"] == direct.json()["response"]
        assert (reply.headers["X-Mutagym-Adopted"], reply.headers["X-Mutagym-Why"]) == (
            "false",
            why,
        )
    assert "not reworded: RuntimeError: no\\x1b[2J luck" in capsys.readouterr().err


def test_a_rewording_that_nobody_waits_for_is_cancelled(simulator: EmbeddedServer) -> None:
    late, left = Future[ProxyRewording](), Future[ProxyRewording]()
    asked = {"model": "sim-target", "prompt": TEXT, "stream": False}
    with proxy(simulator.host, lambda _text: late, 0.3) as host:
        post(f"{host}/api/generate", json=asked)
    with proxy(simulator.host, lambda _text: left) as host:
        with pytest.raises(httpx.ReadTimeout):
            post(f"{host}/api/generate", json=asked, timeout=0.3)
        until(left.cancelled)
    assert late.cancelled()


PAGES = [
    "http://example.org",
    "https://localhost.example.org",
    "null",
    "",
    "http://[",
    "chrome-extension://x",
]
OURS = [
    "http://localhost:3000",
    "http://127.0.0.1",
    "https://[::1]:1",
    "app://obsidian.md",
    "tauri://x",
]


@pytest.mark.parametrize(
    ("origin", "reworded"), [(o, False) for o in PAGES] + [(o, True) for o in OURS]
)
def test_a_web_page_spends_no_rewording_and_is_left_to_the_server(
    origin: str, *, reworded: bool
) -> None:
    begun: list[str] = []

    def reword(text: str) -> Future[ProxyRewording]:
        begun.append(text)
        return done(MADE)

    with ScriptedServer(lambda _body: (200, {})) as server, proxy(server.host, reword) as host:
        asked = {"model": "m", "prompt": TEXT}
        reply = post(f"{host}/api/generate", json=asked, headers={"Origin": origin})
        assert server.bodies[-1]["prompt"] == (REWORDED if reworded else TEXT)
    assert begun == ([TEXT] if reworded else [])
    assert reply.headers.get("X-Mutagym-Why") == (None if reworded else "web page")


@pytest.mark.parametrize(
    "named", [{}, {"Authorization": "Bearer k"}], ids=["none", "the client's own"]
)
def test_no_password_of_netrc_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine model.invalid login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (gateway, heard):
        monkeypatch.setenv("http_proxy", gateway)
        with proxy("http://model.invalid:11434", None) as host:
            reply = post(f"{host}/api/chat", content=b"{}", headers=named)
    assert reply.status_code == 200
    assert b"POST http://model.invalid:11434/api/chat" in heard[-1]
    assert re.findall(rb"(?i)authorization: (.*)\r", heard[-1]) == [
        each.encode() for each in named.values()
    ]


@pytest.mark.parametrize(
    "reword", [None, always(ProxyRewording(text=TEXT, mutator="noop"))], ids=["off", "same"]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_what_is_not_reworded_is_passed_on_byte_for_byte(
    reword: Reword | None, *, chunked: bool
) -> None:
    content = b'{"a":\xff  1}\n{"done": true}\n'
    framed = b"".join(
        b"%x\r\n%s\r\n" % (len(line), line) for line in content.splitlines(keepends=True)
    )
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(content)
    begun = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nX-Own: 1\r\n"
        + length
        + b"\r\n\r\n"
    )
    body = json.dumps({"model": "m", "prompt": TEXT}, indent=3).encode()
    reply_bytes = begun + (framed + b"0\r\n\r\n" if chunked else content)
    with raw_server(reply_bytes) as (host, heard), proxy(host, reword) as listens:
        reply = post(f"{listens}/api/generate", content=body, headers={"Authorization": "Bearer k"})
    assert (reply.content, reply.headers["Content-Type"]) == (content, "application/x-ndjson")
    assert reply.headers["X-Own"] == "1"
    sent = heard[-1]
    assert sent.endswith(b"\r\n\r\n" + body)
    assert b"Authorization: Bearer k\r\n" in sent


def test_parts_of_a_stream_come_as_the_server_sends_them() -> None:
    begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n"
    with raw_server(begun, hold=True) as (host, heard), proxy(host, None) as listens:
        with httpx.stream("POST", f"{listens}/api/chat", content=b"{}") as reply:
            assert next(reply.iter_lines()) == "first"  # while the server has not ended
        until(lambda: b"hung up" in heard)  # and it hears at once that nobody reads


def test_a_client_that_hangs_up_before_a_word_came_ends_its_request_at_the_server() -> None:
    with raw_server(b"", hold=True) as (host, heard), proxy(host, None) as listens:
        with pytest.raises(httpx.ReadTimeout):
            post(f"{listens}/api/chat", content=b"{}", timeout=0.3)
        until(lambda: b"hung up" in heard)


def until(happened: Callable[[], bool]) -> None:
    """Wait for what comes in no time, if at all."""
    end_s = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_reply_that_breaks_off_does_not_end_as_if_it_were_whole() -> None:
    begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n"
    with (
        raw_server(begun) as (host, _),
        proxy(host, None) as listens,
        pytest.raises(httpx.TransportError),
    ):
        post(f"{listens}/api/chat", content=b"{}")


@pytest.mark.parametrize("path", ["/api/chat", "/api/tags", "/v1/chat/completions"])
def test_a_server_that_is_gone_is_a_502_in_the_words_of_the_api(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        host = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with proxy(host, always(MADE)) as listens:
        reply = post(listens + path, json={"messages": [{"role": "user", "content": TEXT}]})
    assert reply.status_code == 502
    error = reply.json()["error"]
    message = error["message"] if path.startswith("/v1") else error
    assert message.startswith(f"{host} does not answer: ")


def test_the_clients_say_what_is_wrong_where_the_server_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        host = f"http://127.0.0.1:{unused.getsockname()[1]}"
    messages: Any = [{"role": "user", "content": TEXT}]
    with proxy(host, always(MADE)) as listens:
        for stream in (False, True):
            with (
                ollama.Client(listens, trust_env=False, verify=TLS) as plain,
                pytest.raises(ollama.ResponseError, match="does not answer") as told,
            ):
                list(plain.chat("m", messages, stream=stream))
            assert told.value.status_code == 502
            with (
                openai.OpenAI(base_url=f"{listens}/v1", api_key="none", max_retries=0) as client,
                pytest.raises(openai.InternalServerError, match="does not answer"),
            ):
                client.chat.completions.create(model="m", messages=messages, stream=stream)


def test_a_server_that_says_nothing_is_a_504() -> None:
    with raw_server(b"", hold=True) as (host, _), proxy(host, None, 0.3) as listens:
        reply = post(f"{listens}/api/chat", content=b"{}")
    assert (reply.status_code, reply.json()["error"]) == (
        504,
        f"{host} did not answer within 0.3 s",
    )


def test_errors_of_the_server_are_passed_on(url: str, simulator: EmbeddedServer) -> None:
    for path in ("/api/chat", "/api/generate", "/v1/chat/completions", "/api/nothing"):
        asked = {"model": "none", "prompt": TEXT, "messages": [{"role": "user", "content": TEXT}]}
        passed, direct = post(url + path, json=asked), post(simulator.host + path, json=asked)
        assert (passed.status_code, passed.content) == (direct.status_code, direct.content)
        assert passed.status_code == 404


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000 + b"\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"Content-Length: 0\r\n\r\n",
        b"hello\r\n\r\n",
        b"",
    ],
    ids=["redirection", "upgrade", "long header", "many headers", "no HTTP", "nothing"],
)
def test_a_reply_that_cannot_be_passed_on_is_a_502(reply: bytes) -> None:
    with raw_server(reply) as (host, heard), proxy(host, None) as listens:
        answer = post(f"{listens}/api/chat", content=b"{}")
    assert answer.status_code == 502
    assert answer.json()["error"].startswith(host)
    assert len([said for said in heard if b"POST" in said]) == 1


def test_nasty_texts_are_safe_in_headers_and_can_be_read_there(simulator: EmbeddedServer) -> None:
    for text in (*NASTY, "a\r\nSet-Cookie: b=c\r\n\r\n", "é,½%41", "\ud800"):
        made = ProxyRewording(text=text, mutator=f"llm:{text}")
        with proxy(simulator.host, always(made)) as host:
            headers = post(
                f"{host}/api/generate", json={"model": "sim-target", "prompt": "a"}
            ).headers
        assert unquote(headers["X-Mutagym-Rewording"]) == text.replace("\ud800", "?")
        assert headers["X-Mutagym-Mutator"].isascii()
        assert headers["X-Mutagym-Mutator"].isprintable()
        assert "Set-Cookie" not in headers


@pytest.mark.parametrize("char", ["x", "é", "🎂"])
def test_a_long_rewording_is_cut_in_its_header_and_whole_in_the_request(char: str) -> None:
    text = char * 5000
    with ScriptedServer(lambda _body: (200, {})) as server:
        with proxy(server.host, always(ProxyRewording(text=text, mutator="m"))) as host:
            headers = post(f"{host}/api/generate", json={"model": "m", "prompt": "a"}).headers
        assert server.bodies[-1]["prompt"] == text
    told = headers["X-Mutagym-Rewording"]
    assert MOST_TOLD_BYTES - 20 < len(told) <= MOST_TOLD_BYTES
    assert unquote(told).rstrip("…") == char * (len(unquote(told)) - 1)


def test_a_server_that_is_a_proxy_is_refused_at_the_start(url: str) -> None:
    port = int(url.rpartition(":")[2])
    for name in (url, f"http://localhost:{port}", f"openai:{url}/v1"):
        with pytest.raises(ProxyError, match="would go in a circle"), proxy(name, None):
            pass


def test_a_request_that_comes_back_is_refused(url: str) -> None:
    for path in ("/api/chat", "/api/tags", "/v1/chat/completions"):
        reply = post(url + path, json={}, headers={MARK: "1"})
        assert reply.status_code == 508
        assert "would go in a circle" in reply.text


def test_what_is_no_http_or_has_no_path_is_an_error_and_nothing_is_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    star = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"
    odd_header = b"GET / HTTP/1.1\r\nA b: c\r\n\r\n"
    for said, status in ((b"\x1b[2J\r\n\r\n", b"400"), (odd_header, b"400"), (star, b"404")):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 30) as client:
            client.sendall(said)
            assert client.recv(65536).split()[1] == status
    assert caplog.records == []


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "[", ""])
def test_a_page_that_bends_its_name_to_this_machine_is_refused(url: str, host: str) -> None:
    assert get(f"{url}/api/tags", headers={"Host": host}).status_code in {400, 403}


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:11434", "[::1]:1", "host.docker.internal:11435"]
)
def test_names_of_this_machine_are_served(url: str, host: str) -> None:
    assert get(f"{url}/api/tags", headers={"Host": host}).status_code == 200


def test_a_request_that_is_too_long_to_be_reworded_is_refused(url: str) -> None:
    body = b'{"prompt": "' + b"x" * 2**26 + b'"}'
    reply = post(f"{url}/api/generate", content=body)
    assert (reply.status_code, reply.json()) == (
        413,
        {"error": "the proxy reads requests of at most 64 MiB"},
    )


def test_what_is_never_reworded_is_passed_on_at_any_length() -> None:
    body = b'{"prompt": "' + b"x" * 2**26 + b'"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with raw_server(answer) as (host, heard), proxy(host, None) as listens:
        assert post(f"{listens}/api/chat", content=body, timeout=60).status_code == 200
    assert heard[-1].endswith(body[-100:])
    assert len(heard[-1]) > len(body)


def test_before_an_openai_server_only_its_own_api_is_served(simulator: EmbeddedServer) -> None:
    with proxy(f"openai:{simulator.host}/v1", always(MADE)) as host:
        with openai.OpenAI(base_url=f"{host}/v1", api_key="none", max_retries=0) as client:
            reply = client.chat.completions.create(
                model="sim-target", messages=[{"role": "user", "content": TEXT}]
            )
        with ollama.Client(simulator.host, trust_env=False, verify=TLS) as plain:
            direct = plain.chat("sim-target", [{"role": "user", "content": REWORDED}])
        assert reply.choices[0].message.content == direct.message.content
        refused = post(f"{host}/api/chat", json={})
    assert refused.status_code == 501
    assert "speaks OpenAI's API alone" in refused.json()["error"]
