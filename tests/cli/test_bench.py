"""The benchmark: its rows, that they do the same work, and what it says of other servers."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import FORMAT
from tests.ollama_utils.scripted import ScriptedServer

Capture = pytest.CaptureFixture[str]
EMBEDDED = ("--ollama-host", "embedded", "--slots", "4", "--time-scale", "0.02")
SPINNING = """
import time
def reward(query, reply):
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    return 0.0
"""


def _bench(folder: Path, *flags: str, host: str = "", code: int = 0) -> list[dict[str, Any]]:
    """The rows of four lanes and four steps, or as the flags say."""
    path = folder / "rows.json"
    server = ("--ollama-host", host) if host else EMBEDDED
    small = ("--num-processes", "4", "--num-steps", "4")
    assert execute(("bench", *server, *small, *flags, "--json", str(path))) == code
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


def test_all_rows_make_the_same_transitions_with_the_same_calls(tmp_path: Path) -> None:
    rows = _bench(tmp_path, "--max-workers", "2,4", "--judge")
    settings = [("sequential", 1), ("phased", 2), ("phased", 4), ("lanes", 2), ("lanes", 4)]
    assert [(row["schedule"], row["max_workers"]) for row in rows] == settings
    assert len({row["transitions_sha256"] for row in rows}) == 1
    assert {row["llm_calls"] for row in rows} == {3 * 16}


@pytest.mark.parametrize(
    "schedule", ["gym-async", pytest.param("sb3-subproc", marks=pytest.mark.soak)]
)
def test_lanes_in_processes_do_the_same_and_their_cpu_time_and_memory_count(
    tmp_path: Path, schedule: str
) -> None:
    """Each step takes 50 ms of CPU time, in whichever process it is scored."""
    (tmp_path / "spinning.py").write_text(SPINNING)
    reward = ("--reward", f"{tmp_path / 'spinning.py'}:reward")
    here, apart = _bench(
        tmp_path, "--sweep-lanes", "2", "--schedules", f"lanes,{schedule}", *reward
    )
    assert apart["transitions_sha256"] == here["transitions_sha256"]
    assert apart["llm_calls"] == here["llm_calls"] == 2 * 2 * 4
    assert min(row["cpu_ms_per_step"] for row in (here, apart)) >= 50
    assert here["memory_mib"] is None or apart["memory_mib"] > here["memory_mib"] > 0


def test_a_sweep_has_rows_for_each_number_of_lanes_and_their_bounds(
    tmp_path: Path, capsys: Capture
) -> None:
    """The bound: slots that are never idle, or with fewer lanes than slots no lane that is."""
    rows = _bench(tmp_path, "--schedules", "phased,lanes", "--sweep-lanes", "1,6,01")
    names = [(row["num_processes"], row["schedule"]) for row in rows]
    assert names == [(lanes, schedule) for lanes in (1, 6) for schedule in ("phased", "lanes")]
    hashes = [row["transitions_sha256"] for row in rows]
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]
    for row in rows:
        at_once = min(row["slots"], row["num_processes"])
        assert row["slot_utilisation"] == pytest.approx(row["busy_slots"] / row["slots"], rel=0.01)
        assert row["fraction_of_bound"] == pytest.approx(row["busy_slots"] / at_once, rel=0.01)
        assert 0 < row["fraction_of_bound"] <= 1
    shown, said = capsys.readouterr()
    assert "SIMULATED" in shown
    assert "of bound" in shown
    assert "transitions: identical" in shown
    assert "lanes: 6 lanes, 6 workers, seed 0" in said
    assert "lanes: 6 lanes" not in shown


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--schedules=sequential,random", "'sequential,random'; expected some of sequential"),
        ("--sweep-lanes=4,0", "--sweep-lanes has '4,0'"),
        ("--encoder=hashing:x", "'hashing:x'"),
        ("--faults=faults.json", "--faults"),
    ],
)
def test_what_cannot_be_timed_is_one_line(flags: str, says: str, capsys: Capture) -> None:
    assert execute(("bench", *EMBEDDED, flags)) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_on_another_server_equal_replies_are_counted_after_a_warm_up_of_all_work(
    simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    flags = ("--target-model", "sim-model", "--sweep-lanes", "1,3")
    rows = _bench(tmp_path, *flags, host=f"openai:{simulator.host}/v1")[4:]
    schedules = ["sequential", "sequential again", "phased", "lanes"]
    assert [row["schedule"] for row in rows] == schedules
    assert len({row["transitions_sha256"] for row in rows}) == 1
    assert {row["llm_calls"] for row in rows} == {24}
    assert [row["equal_replies"] for row in rows] == [None, 1, 1, 1]
    assert [row["compared_replies"] for row in rows] == [0, 24, 24, 24]
    assert {(row["simulated"], row["slots"]) for row in rows} == {(True, 16)}
    shown, said = capsys.readouterr()
    assert "100 % of 24" in shown
    begun = [line for line in said.splitlines() if line.endswith("...")]
    assert sum(line.startswith("warming up, not counted") for line in begun) == 2


@pytest.mark.parametrize("simulated", [False, True])
def test_where_replies_differ_their_share_is_told_and_on_a_simulator_it_is_an_error(
    tmp_path: Path, capsys: Capture, *, simulated: bool
) -> None:
    """Rewordings are equal each time, and no two answers are."""
    numbers, asked = count(), []

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            models = {"models": [{"details": {"format": FORMAT}}]} if simulated else {}
            return 200, {"data": [{"id": "m"}], "total_slots": 2} | models
        text = "unchanged rewording"
        if body["max_tokens"] == 24:
            asked.append(body["messages"][0])
            text = f"Do {next(numbers)}."
        return 200, {  # as llama.cpp's server has it
            "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 7},
            "timings": {"prompt_ms": 1, "predicted_ms": 4},
        }

    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(f"question number {k} of many" for k in range(20)))
    flags = ("--num-predict", "24", "--target-system", "Be brief.", "--queries", str(queries))
    with ScriptedServer(answer) as server:
        rows = _bench(tmp_path, *flags, host=f"openai:{server.host}", code=int(simulated))
    assert asked == [{"role": "system", "content": "Be brief."}] * len(asked) != []
    assert len({row["transitions_sha256"] for row in rows}) == len(rows)
    assert [row["equal_replies"] for row in rows] == [None, 0.5, 0.5, 0.5]
    assert [row["equal_transitions"] for row in rows] == [True, False, False, False]
    assert {row["slots"] for row in rows} == {2}
    shown, said = capsys.readouterr()
    assert "50 % of 32" in shown
    assert "not identical under sequential again, phased, lanes" in shown
    assert ("simulated" in (shown + said).lower()) == simulated
    assert ("transitions DIFFER" in said) == simulated
