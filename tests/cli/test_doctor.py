"""`mutagym doctor`: it finds each lie of a server, in time, and only looks."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli import doctor
from cli.main import execute
from ollama_utils import server_checks
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.hostile import RawServer
from tests.ollama_utils.lying import (
    CONTEXT,
    TEMPLATE_TOKENS,
    Answer,
    Body,
    Honest,
    Lie,
    LyingServer,
    UnderWay,
    changing,
    count_prompt,
    message,
    options,
    saying,
)
from tests.ollama_utils.scripted import ScriptedServer

Capture = pytest.CaptureFixture[str]

CHECKS = [*("reached", "slots", "speed", "memory", "equal", "overlong", "thoughts", "schema")]
CHECKS += ["seed", "template", "busy"]
ONE = ("--target-model", "sim-model")
TWO = ("--target-model", "sim-target", "--mutator-model", "sim-mutator")
OVER = "the --seconds were over"
BY_THE_CLOCK = ("slots", "speed")


def _on(wire: str, host: str) -> str:
    return f"openai:{host}/v1" if wire == "openai" else host


def _report(folder: Path, host: str, *flags: str) -> dict[str, Any]:
    path = folder / "found.json"
    limit = () if "--seconds" in flags else ("--seconds", "30")
    assert execute(("doctor", "--ollama-host", host, "--json", str(path), *limit, *flags)) == 0
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def _rows(report: dict[str, Any], server: int = 0) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in report["servers"][server]["rows"]}


def _broken(report: dict[str, Any], check: str = "") -> list[str]:
    """What does not hold; of what a busy machine disturbs, only what the test is about."""
    rows = {
        key: row for key, row in _rows(report).items() if key == check or key not in BY_THE_CLOCK
    }
    return [key for key, row in rows.items() if row["verdict"] == "does not"]


@pytest.fixture(scope="module")
def four_slots() -> Iterator[EmbeddedServer]:
    """Calls take long enough for some to be seen to wait."""
    with EmbeddedServer(Settings(slots=4, time_scale=0.2)) as server:
        yield server


def test_the_simulator_is_what_it_says_and_gets_no_more_than_is_announced(
    four_slots: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    four_slots.reset_stats()
    report = _report(tmp_path, four_slots.host, *TWO, "--encoder", "ollama:sim-embed")
    stats, rows, (shown, said) = four_slots.stats(), _rows(report), capsys.readouterr()
    assert list(rows) == CHECKS
    assert not _broken(report)
    assert rows["memory"]["numbers"]["models"] == ["sim-target", "sim-mutator", "sim-embed"]
    assert rows["reached"]["numbers"].keys() >= {"version", "pulled", "loaded", "context"}
    assert rows["slots"]["do"] == "OLLAMA_NUM_PARALLEL=8 ollama serve"
    refused = 2  # a prompt that is too long, and thinking
    assert stats["calls"] + refused == report["calls"]["sent"] <= report["calls"]["announced"]
    most = f"at most {report['calls']['announced']} calls"
    for word in ("sim-target, sim-mutator, sim-embed", four_slots.host, most):
        assert word in said.splitlines()[0]
    assert "SIMULATED" in shown
    assert "Equal requests" in shown


def test_where_no_model_is_named_none_is_called_and_the_first_row_is_there(
    four_slots: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    four_slots.reset_stats()
    report = _report(tmp_path, four_slots.host, "--request-field", "seed=")
    said = capsys.readouterr()
    assert four_slots.stats()["calls"] == 0
    assert said.err.count("note: ") == 1
    assert list(_rows(report)) == ["reached"]
    assert "sim-model:latest" in _rows(report)["reached"]["numbers"]["pulled"]
    assert "name a model, as in --target-model" in said.out


def test_each_of_several_servers_has_rows_and_its_part_of_the_lanes(
    four_slots: EmbeddedServer, tmp_path: Path
) -> None:
    first = _on("openai", four_slots.host)
    with EmbeddedServer(Settings(slots=1, time_scale=0.2)) as second:
        flags = ("--ollama-host", second.host, *ONE, "--num-processes", "8")
        report = _report(tmp_path, first, *flags)
    assert [each["host"] for each in report["servers"]] == [first, second.host]
    assert [_rows(report, server)["slots"]["verdict"] for server in (0, 1)] == ["holds", "does not"]
    assert _rows(report, 1)["slots"]["do"] == "OLLAMA_NUM_PARALLEL=4 ollama serve"


# --- lies ---


def _missing(_path: str, asked: Body, honest: Honest) -> Answer:
    return (404, {"error": "model 'sim-model' not found"}) if asked else honest()


def _one_at_a_time() -> Lie:
    slot = threading.Lock()

    def lie(_path: str, asked: Body, honest: Honest) -> Answer:
        began_s = time.perf_counter()
        with slot if asked else threading.Lock():
            waited_s = time.perf_counter() - began_s
            status, reply = honest()
        if "total_duration" in reply:
            reply["total_duration"] += round(waited_s * 1e9)
        return status, reply

    return lie


def _target_is_unloaded(path: str, _asked: Body, honest: Honest) -> Answer:
    status, reply = honest()
    if path == "/api/ps":
        reply["models"] = [model for model in reply["models"] if "target" not in model["name"]]
    return status, reply


def _cuts_prompts(_path: str, asked: Body, honest: Honest) -> Answer:
    holder, key = (asked["messages"][-1], "content") if "messages" in asked else (asked, "prompt")
    if len(holder.get(key, "")) > CONTEXT:
        holder[key] = holder[key][-2 * CONTEXT :]
    return honest()


def _thinks_always(asked: Body, reply: Body) -> None:
    message(reply)[0]["reasoning" if "messages" in asked else "thinking"] = "Hmm, let me see."


def _has_schema(asked: Body) -> bool:
    return bool(asked.get("format") or asked.get("response_format"))


def _drawing(seed: Callable[[], int]) -> Lie:
    """Draws with seeds of its own."""

    def lie(_path: str, asked: Body, honest: Honest) -> Answer:
        if options(asked).get("temperature"):
            options(asked)["seed"] = seed()
        return honest()

    return lie


def _ending(text: Callable[[], str]) -> Lie:
    """Greedy replies, but for JSON, have another end."""
    return saying(
        lambda asked, said: (
            said if _has_schema(asked) or options(asked)["temperature"] else f"{said} {text()}"
        )
    )


def _turns_away() -> Lie:
    under_way = UnderWay()

    def lie(_path: str, asked: Body, honest: Honest) -> Answer:
        if not asked:
            return honest()
        with under_way as company:
            if company <= 2:
                return honest()
        time.sleep(0.05)
        return 503, {"error": "server busy"}

    return lie


_numbers = count()
LIES: dict[str, tuple[str, Lie]] = {
    "reached": ("openai", _missing),
    "slots": ("ollama", _one_at_a_time()),
    "memory": ("ollama", _target_is_unloaded),
    "equal": ("openai", _ending(lambda: str(next(_numbers)))),
    "overlong": ("ollama", _cuts_prompts),
    "thoughts": ("openai", changing(_thinks_always)),
    "schema": ("ollama", saying(lambda asked, said: "Red." if _has_schema(asked) else said)),
    "seed": ("openai", _drawing(count().__next__)),
    "template": ("ollama", changing(lambda _asked, reply: count_prompt(reply, -TEMPLATE_TOKENS))),
    "busy": ("ollama", _turns_away()),
}
"""For each check the wire and what it finds."""


@pytest.mark.parametrize("check", LIES)
def test_a_lie_is_found_by_its_row_alone(
    check: str,
    simulator: EmbeddedServer,
    four_slots: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if check not in {"slots", "busy"}:
        monkeypatch.setattr(server_checks, "CALLS", {4: 12})
    wire, lie = LIES[check]
    host = four_slots.host if check == "slots" else simulator.host
    flags = TWO if check == "memory" else ONE
    with LyingServer(host, lie) as server:
        report = _report(tmp_path, _on(wire, server.host), *flags)
    assert _broken(report, check) == [check]
    assert _rows(report)[check]["follows"]


# --- servers that hang ---


def _drips(client: socket.socket) -> None:
    while True:
        client.sendall(b"H")
        time.sleep(0.05)


def test_a_server_that_hangs_is_left_when_the_seconds_are_over(
    four_slots: EmbeddedServer, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CLOSE_S", 0.1)
    began_s, never = time.monotonic(), threading.Event()

    def hangs(_path: str, asked: Body, honest: Honest) -> Answer:
        if asked:
            never.wait()
        return honest()

    with LyingServer(four_slots.host, hangs) as server:
        rows = _rows(_report(tmp_path, server.host, *ONE, "--seconds", "1"))
        never.set()
    assert "no reply in time" in rows.pop("reached")["seen"]
    assert {(row["verdict"], row["seen"]) for row in rows.values()} == {("cannot say", OVER)}
    with RawServer(_drips) as hung:
        assert execute(("doctor", "--ollama-host", hung.host, "--seconds", "0.3")) == 2
    assert hung.host in capsys.readouterr().err.splitlines()[-1]
    assert time.monotonic() - began_s < 30  # they would hang for minutes


def test_a_call_that_fails_is_a_row_and_not_the_end(tmp_path: Path) -> None:
    def broken(body: Body) -> tuple[int, object]:
        if "model" in body:
            return 400, {"error": "out of order"}
        return 200, {"models": [{"model": "m:latest"}], "version": "1"}

    with ScriptedServer(broken) as server:
        rows = _rows(_report(tmp_path, server.host, "--target-model", "m"))
    assert "out of order" in rows["reached"]["seen"]
    assert rows["seed"]["seen"] == "no call was answered: see the first row"
    assert not [check for check, row in rows.items() if row["verdict"] == "holds"]


def test_no_server_or_no_model_is_one_line(capsys: Capture) -> None:
    assert execute(("doctor", "--ollama-host", "http://127.0.0.1:9")) == 2
    assert "ollama serve" in capsys.readouterr().err.splitlines()[-1]
    with ScriptedServer(lambda _body: (200, {"models": []})) as server:
        assert execute(("doctor", "--ollama-host", server.host)) == 2
    assert "ollama pull" in capsys.readouterr().err.splitlines()[-1]
