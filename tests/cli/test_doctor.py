"""`mutagym doctor`: it finds each lie of a server, in time, and only looks."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli import doctor
from cli.main import execute
from ollama_utils import server_checks
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils import lying
from tests.ollama_utils.hostile import RawServer
from tests.ollama_utils.lying import Answer, Body, Honest, Lie, LyingServer
from tests.ollama_utils.scripted import ScriptedServer

Capture = pytest.CaptureFixture[str]
Rows = dict[str, dict[str, Any]]
ONE = ("--target-model", "sim-model")
TWO = ("--target-model", "sim-target", "--mutator-model", "sim-mutator")


def examined(
    folder: Path, host: str, *flags: str, code: int = 0, seconds: float = 30
) -> tuple[dict[str, Any], list[Rows]]:
    """What doctor reports, and the rows of each server by their checks."""
    path = folder / "found.json"
    limits = ("--seconds", str(seconds), "--json", str(path))
    assert execute(("doctor", "--ollama-host", host, *limits, *flags)) == code
    report = json.loads(path.read_text())
    return report, [{row["check"]: row for row in each["rows"]} for each in report["servers"]]


def broken(rows: Rows) -> list[str]:
    """What does not hold, but for what a busy machine disturbs."""
    failing = [key for key, row in rows.items() if row["verdict"] == "does not"]
    return [key for key in failing if key not in {"slots", "speed"}]


@pytest.fixture(scope="module")
def four_slots() -> Iterator[EmbeddedServer]:
    """Calls take long enough for some to be seen to wait."""
    with EmbeddedServer(Settings(slots=4, time_scale=0.2)) as server:
        yield server


def test_the_simulator_is_what_it_says_and_gets_no_more_than_is_announced(
    four_slots: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    four_slots.reset_stats()
    embedding = ("--encoder", "ollama:sim-embed")
    report, (rows,) = examined(tmp_path, four_slots.host, *TWO, *embedding)
    stats, (shown, said) = four_slots.stats(), capsys.readouterr()
    assert rows.keys() == LIES.keys() | {"reached", "slots", "speed"}
    assert not broken(rows)
    assert rows["memory"]["numbers"]["models"] == ["sim-target", "sim-mutator", "sim-embed"]
    assert rows["reached"]["numbers"].keys() >= {"version", "pulled", "loaded", "context"}
    assert rows["slots"]["do"] == "OLLAMA_NUM_PARALLEL=8 ollama serve"
    assert rows["slots"]["numbers"].keys() == {"slots", "at_once", "stated"}
    assert rows["speed"]["numbers"].keys() == {"tokens_per_s_alone", "tokens_per_s_full"}
    assert rows["equal"]["numbers"]["alone"] == [4, 4]
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
    _, (rows,) = examined(tmp_path, four_slots.host)
    assert four_slots.stats()["calls"] == 0
    assert list(rows) == ["reached"]
    assert "sim-model:latest" in rows["reached"]["numbers"]["pulled"]
    assert "name a model, as in --target-model" in capsys.readouterr().out


def test_each_of_several_servers_has_rows_and_its_part_of_the_lanes(
    four_slots: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "CALLS", {4: 12, 16: 32})
    first = f"openai:{four_slots.host}/v1"
    with EmbeddedServer(Settings(slots=1, time_scale=0.2)) as second:
        flags = ("--ollama-host", second.host, *ONE, "--num-processes", "8")
        report, rows = examined(tmp_path, first, *flags)
    assert [each["host"] for each in report["servers"]] == [first, second.host]
    assert [each["slots"]["verdict"] for each in rows] == ["holds", "does not"]
    assert rows[1]["slots"]["do"] == "OLLAMA_NUM_PARALLEL=4 ollama serve"


def test_the_speed_alone_is_that_of_questions_whose_prompts_were_read_before(
    simulator: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "CALLS", {4: 12})
    met: set[str] = set()

    def reads_slowly(_path: str, asked: Body, honest: Honest) -> Answer:
        question = asked.get("prompt", "")
        if question in server_checks.QUESTIONS[1:] and question not in met:
            met.add(question)
            time.sleep(0.5)
        return honest()

    def loads_anew(_asked: Body, reply: Body) -> None:
        reply["load_duration"] = reply["total_duration"] = 10**9

    with LyingServer(simulator.host, reads_slowly) as server:
        _, (rows,) = examined(tmp_path, server.host, *ONE)
    assert rows["speed"]["numbers"]["tokens_per_s_alone"] > 8 * server_checks.TOKENS / 1.5
    with LyingServer(simulator.host, lying.changing(loads_anew)) as server:
        _, (rows,) = examined(tmp_path, server.host, *ONE)
    assert rows["speed"]["verdict"] == "cannot say"


# --- lies ---

_numbers = count()


def _target_is_unloaded(path: str, _asked: Body, honest: Honest) -> Answer:
    status, reply = honest()
    if path == "/api/ps":
        reply["models"] = [model for model in reply["models"] if "target" not in model["name"]]
    return status, reply


def _cuts_prompts(_path: str, asked: Body, honest: Honest) -> Answer:
    holder, key = (asked["messages"][-1], "content") if "messages" in asked else (asked, "prompt")
    if len(holder.get(key, "")) > lying.CONTEXT:
        holder[key] = holder[key][-2 * lying.CONTEXT :]
    return honest()


def _thinks_always(asked: Body, reply: Body) -> None:
    lying.message(reply)[0]["reasoning" if "messages" in asked else "thinking"] = "Hmm."


def _has_schema(asked: Body) -> bool:
    return bool(asked.get("format") or asked.get("response_format"))


def _draws_seeds_of_its_own(_path: str, asked: Body, honest: Honest) -> Answer:
    if lying.options(asked).get("temperature"):
        lying.options(asked)["seed"] = next(_numbers)
    return honest()


def _never_the_same(asked: Body, said: str) -> str:
    is_other = not _has_schema(asked) and not lying.options(asked)["temperature"]
    return f"{said} {next(_numbers)}" if is_other else said


def _turns_away(most: int) -> Lie:
    under_way = lying.UnderWay()

    def lie(_path: str, asked: Body, honest: Honest) -> Answer:
        with under_way as company:
            if not asked or company <= most:
                return honest()
        time.sleep(0.05)
        return 503, {"error": "server busy"}

    return lie


def _has_no_template(_asked: Body, reply: Body) -> None:
    lying.count_prompt(reply, -lying.TEMPLATE_TOKENS)


LIES: dict[str, tuple[str, Lie]] = {
    "memory": ("HOST", _target_is_unloaded),
    "equal": ("openai:HOST/v1", lying.saying(_never_the_same)),
    "overlong": ("HOST", _cuts_prompts),
    "thoughts": ("openai:HOST/v1", lying.changing(_thinks_always)),
    "schema": ("HOST", lying.saying(lambda asked, said: "Red." if _has_schema(asked) else said)),
    "seed": ("openai:HOST/v1", _draws_seeds_of_its_own),
    "template": ("HOST", lying.changing(_has_no_template)),
    "busy": ("HOST", _turns_away(2)),
}
"""For each check the server's address and what it finds."""


@pytest.mark.parametrize("check", LIES)
def test_a_lie_is_found_by_its_row_alone(
    check: str, simulator: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if check != "busy":
        monkeypatch.setattr(server_checks, "CALLS", {4: 12})
    host, lie = LIES[check]
    with LyingServer(simulator.host, lie) as server:
        named = host.replace("HOST", server.host)
        _, (rows,) = examined(tmp_path, named, *(TWO if check == "memory" else ONE))
    assert broken(rows) == [check]
    assert rows[check]["follows"]


# --- servers that answer nothing ---


def test_where_no_call_is_answered_the_rows_and_the_last_line_say_so(
    tmp_path: Path, capsys: Capture
) -> None:
    def fails(body: Body) -> tuple[int, object]:
        if "model" in body:
            return 400, {"error": "out of order"}
        return 200, {"models": [{"model": "m:latest"}], "version": "1"}

    with ScriptedServer(fails) as server:
        _, (rows,) = examined(tmp_path, server.host, "--target-model", "m", code=1)
    assert broken(rows) == ["reached"]
    assert "out of order" in rows["reached"]["seen"]
    assert rows["seed"]["seen"] == "no call was answered: see the first row"
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"{server.host} answered no call: " in line
    assert "out of order" in line


def test_a_server_that_hangs_is_left_when_the_seconds_are_over(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CLOSE_S", 0.1)
    began_s, never = time.monotonic(), threading.Event()

    def hangs(_path: str, asked: Body, honest: Honest) -> Answer:
        if asked:
            never.wait()
        return honest()

    def drips(client: socket.socket) -> None:
        while True:
            client.sendall(b"H")
            time.sleep(0.05)

    with LyingServer(simulator.host, hangs) as server:
        _, (rows,) = examined(tmp_path, server.host, *ONE, code=1, seconds=0.7)
        never.set()
    assert "answered no call: " in capsys.readouterr().err.splitlines()[-1]
    assert "no reply in time" in rows.pop("reached")["seen"]
    assert {row["seen"] for row in rows.values()} == {"the --seconds were over"}
    for answer in (drips, lambda client: client.recv(1)):
        with RawServer(answer) as hung:
            assert execute(("doctor", "--ollama-host", hung.host, "--seconds", "0.3")) == 3
        line = capsys.readouterr().err.splitlines()[-1]
        assert f"{hung.host} did not list its models in time: allow more (--seconds" in line
    assert time.monotonic() - began_s < 30  # they would hang for minutes


def test_no_model_is_one_line(capsys: Capture) -> None:
    with ScriptedServer(lambda _body: (200, {"models": []})) as server:
        assert execute(("doctor", "--ollama-host", server.host)) == 2
    assert "ollama pull" in capsys.readouterr().err.splitlines()[-1]
