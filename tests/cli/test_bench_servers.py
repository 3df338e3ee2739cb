"""The benchmark on a server that it did not start: over both wires, with equal and with unequal replies."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.bench import calls_of, equal_replies
from cli.main import execute
from cli.timed_rollout import LaneStep
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer

BY_MODEL = {"shorten"}
SMALL = ("--num-processes", "3", "--num-steps", "4")
SCHEDULES = ["sequential", "sequential again", "phased", "lanes"]
UNKNOWN = ("slots", "slot_utilisation", "bound_env_steps_per_s", "fraction_of_bound", "busy_slots")
"""What nobody can tell of a server that says neither its slots nor how long it served a call."""


def _rows(host: str, folder: Path, *flags: str) -> list[dict[str, Any]]:
    path = folder / "rows.json"
    assert execute(("bench", "--ollama-host", host, *SMALL, *flags, "--json", str(path))) == 0
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


@pytest.mark.parametrize("wire", ["{}", "openai:{}/v1"])
def test_rows_over_either_wire_have_equal_replies_where_the_server_answers_equally(
    wire: str, simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _rows(wire.format(simulator.host), tmp_path, "--target-model", "sim-model")
    assert [row["schedule"] for row in rows] == SCHEDULES
    assert len({row["transitions_sha256"] for row in rows}) == 1
    assert {(row["llm_calls"], row["failed_calls"], row["unscored_steps"]) for row in rows} == {(24, 0, 0)}
    assert [row["equal_replies"] for row in rows] == [None, 1, 1, 1]
    assert [row["compared_replies"] for row in rows] == [0, 24, 24, 24]
    assert all(row["speedup"] > 0 and row["simulated"] for row in rows)
    shown, said = capsys.readouterr()
    assert "simulated: one rollout" in shown
    assert "100 % of 24" in shown
    assert "transitions: identical" in shown
    assert said.splitlines()[0] == "warming up, not counted: 3 lanes ..."


def test_a_server_that_tells_its_slots_has_a_bound(simulator: EmbeddedServer, tmp_path: Path) -> None:
    for row in _rows(f"openai:{simulator.host}/v1", tmp_path, "--target-model", "sim-model"):
        assert row["slots"] == 16
        assert row["busy_slots"] == pytest.approx(3 * row["fraction_of_bound"], rel=0.01)
        assert 0 < row["env_steps_per_s"] <= row["bound_env_steps_per_s"]


def test_lanes_in_processes_have_a_speed_and_equal_replies_and_no_figures_of_calls(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("--target-model", "sim-model", "--schedules", "lanes,gym-async")
    here, apart = _rows(simulator.host, tmp_path, *flags)
    assert apart["equal_replies"] == 1
    assert apart["completion_tokens"] == here["completion_tokens"]
    assert apart["llm_calls"] is apart["busy_slots"] is None


def _told(text: str) -> dict[str, Any]:
    """A reply of llama.cpp's."""
    return {
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7},
        "timings": {"prompt_ms": 1, "predicted_ms": 4},
    }


def test_on_a_real_server_replies_may_differ_and_the_share_of_equal_ones_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rewordings are equal each time, and no two answers are."""
    numbers = count()

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            return 200, {"data": [{"id": "m"}], "total_slots": 2}
        is_answer = body["max_tokens"] == 24
        return 200, _told(f"Do {next(numbers)}." if is_answer else "unchanged rewording")

    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(f"question number {k} of many" for k in range(20)))
    with ScriptedServer(answer) as server:
        flags = ("--num-predict", "24", "--target-system", "Be brief.", "--queries", str(queries))
        rows = _rows(f"openai:{server.host}", tmp_path, *flags)
    systems = [
        body["messages"][0] for body in server.bodies if body.get("max_tokens") == 24 and "messages" in body
    ]
    assert systems == [{"role": "system", "content": "Be brief."}] * len(systems) != []
    assert len({row["transitions_sha256"] for row in rows}) == len(rows)
    assert [row["equal_replies"] for row in rows] == [None, 0.5, 0.5, 0.5]
    assert not any(row["simulated"] for row in rows)
    assert {row["slots"] for row in rows} == {2}
    assert all(row["fraction_of_bound"] == pytest.approx(row["busy_slots"] / 2, rel=0.01) for row in rows)
    shown, said = capsys.readouterr()
    assert "m, 2 slots: one rollout" in shown
    assert "50 % of 24" in shown
    assert "not identical under sequential again, phased, lanes" in shown
    assert "simulated" not in (shown + said).lower()


def test_a_server_that_fails_every_call_ends_the_benchmark_in_its_warm_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "model" in body:
            return 400, {"error": "out of order"}
        return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}

    with ScriptedServer(answer) as server:
        flags = ("--ollama-host", server.host, "--target-model", "m", "--call-attempts", "1")
        assert execute(("bench", *SMALL, *flags)) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "no step could be scored" in said
    assert "out of order" in said


def test_steps_that_could_not_be_scored_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = count()

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}
        if next(numbers) % 5 == 4:
            return 400, {"error": "out of order"}
        return 200, SAID | {"model": "m", "message": {"role": "assistant", "content": "Yes."}}

    with ScriptedServer(answer) as server:
        flags = ("--target-model", "m", "--call-attempts", "1", "--schedules", "sequential")
        first, _ = _rows(server.host, tmp_path, *flags)
    assert 0 < first["unscored_steps"] < 12
    assert {first[key] for key in UNKNOWN} == {first["speedup"]} == {None}
    shown, said = capsys.readouterr()
    assert "m, unknown slots" in shown
    assert f"{first['unscored_steps']} of 12 steps could not be scored" in said


def _step(before: str, after: str, reply: str, number: int, **more: object) -> LaneStep:
    info = {
        "episode_number": 0,
        "step_number": number,
        "attempt": 0,
        "original_query": "q",
        "query_before": before,
        "mutator": "shorten",
        "mutated_query": after,
        "adopted": True,
        "reply": reply,
        "unscored": False,
    }
    return LaneStep(info | more, terminated=False, truncated=False)


def test_only_calls_that_asked_the_same_are_compared() -> None:
    one = calls_of([[_step("q", "a", "no", 0)], [_step("a", "b", "no", 1)]], BY_MODEL)
    assert equal_replies(one, one) == {"equal_replies": 1, "compared_replies": 4}
    other_answer = calls_of([[_step("q", "a", "yes", 0)], [_step("a", "b", "no", 1)]], BY_MODEL)
    assert equal_replies(one, other_answer) == {"equal_replies": 0.75, "compared_replies": 4}
    # Another rewording: only the first call was the same, for the next step begins from another query.
    other_query = calls_of([[_step("q", "c", "no", 0)], [_step("c", "b", "no", 1)]], BY_MODEL)
    assert equal_replies(one, other_query) == {"equal_replies": 0.5, "compared_replies": 2}


def test_calls_of_another_episode_or_of_a_step_that_did_not_happen_are_not_compared() -> None:
    one = calls_of([[_step("q", "a", "no", 0)]], BY_MODEL)
    later = calls_of([[_step("q", "a", "no", 0, episode_number=1)]], BY_MODEL)
    assert equal_replies(one, later)["compared_replies"] == 0
    assert calls_of([[_step("q", "", "", 0, unscored=True)]], BY_MODEL) == {}


def test_rewordings_by_rule_are_no_replies() -> None:
    by_rule = _step("a", "b", "no", 1, mutator="add_politeness")
    assert list(calls_of([[_step("q", "a", "no", 0)], [by_rule]], BY_MODEL).values()) == ["a", "no", "no"]


def test_each_number_of_lanes_and_each_seed_is_warmed_up_with_its_own_work(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (
        "--target-model",
        "sim-model",
        "--schedules",
        "phased,lanes",
        "--sweep-lanes",
        "1,2",
        "--seeds",
        "2",
    )
    _rows(simulator.host, tmp_path, *flags)
    begun = [line.split(" ...")[0] for line in capsys.readouterr().err.splitlines() if line.endswith("...")]
    warm_ups = [line.startswith("warming up") for line in begun]
    assert warm_ups == 2 * [True, False, True, False, False, False]


def test_faults_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text('[{"kind": "status", "rate": 0.1}]')
    assert execute(("bench", "--ollama-host", "embedded", *SMALL, "--faults", str(faults))) == 2
    assert "--faults" in capsys.readouterr().err
