"""The benchmark: its rows, that they do the same work, and what it says of servers it did not start."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import FORMAT
from tests.ollama_utils.scripted import SAID, ScriptedServer

Capture = pytest.CaptureFixture[str]
EMBEDDED = ("--ollama-host", "embedded", "--slots", "4", "--time-scale", "0.02")
KEYS = {
    *("schedule", "num_processes", "max_workers", "seed", "seeds", "env_steps", "unscored_steps"),
    *("wall_s", "env_steps_per_s", "speedup", "slots", "busy_slots", "slot_utilisation"),
    *("bound_env_steps_per_s", "fraction_of_bound", "max_in_flight", "llm_calls", "failed_calls"),
    *("completion_tokens", "equal_replies", "compared_replies", "cpu_ms_per_step", "memory_mib"),
    *("startup_s", "transitions_sha256", "equal_transitions", "simulated"),
}
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
    assert all(set(row) == KEYS for row in rows)
    return rows


@pytest.mark.parametrize(
    ("flags", "calls"), [(("--judge",), 3), pytest.param((), 2, marks=pytest.mark.soak)]
)
def test_all_rows_make_the_same_transitions_with_the_same_calls(
    tmp_path: Path, flags: tuple[str, ...], calls: int
) -> None:
    rows = _bench(
        tmp_path, "--schedules", "sequential,phased,phased8,lanes", "--max-workers", "2,4", *flags
    )
    settings = [
        ("sequential", 1),
        ("phased", 2),
        ("phased", 4),
        ("phased8", 8),
        ("lanes", 2),
        ("lanes", 4),
    ]
    assert [(row["schedule"], row["max_workers"]) for row in rows] == settings
    assert len({row["transitions_sha256"] for row in rows}) == 1
    assert {row["llm_calls"] for row in rows} == {calls * 16}
    assert all(1 <= row["max_in_flight"] <= row["max_workers"] for row in rows)


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
    rows = _bench(tmp_path, "--schedules", "phased8,lanes", "--sweep-lanes", "1,3,6")
    names = [(row["num_processes"], row["schedule"]) for row in rows]
    assert names == [(lanes, schedule) for lanes in (1, 3, 6) for schedule in ("phased8", "lanes")]
    hashes = [row["transitions_sha256"] for row in rows]
    assert hashes[::2] == hashes[1::2]
    assert len(set(hashes)) == 3
    for row in rows:
        busy_s = row["busy_slots"] * row["wall_s"]
        at_once = min(row["slots"], row["num_processes"])
        assert row["slot_utilisation"] == pytest.approx(row["busy_slots"] / row["slots"], rel=0.01)
        assert row["bound_env_steps_per_s"] == pytest.approx(
            row["env_steps"] * at_once / busy_s, rel=0.01
        )
        assert row["fraction_of_bound"] == pytest.approx(row["busy_slots"] / at_once, rel=0.01)
        assert 0 < row["fraction_of_bound"] <= 1
    shown, said = capsys.readouterr()
    assert "SIMULATED" in shown
    assert "of bound" in shown
    assert "transitions: identical" in shown
    assert "lanes: 6 lanes, 6 workers, seed 0" in said
    assert "lanes: 6 lanes" not in shown


def test_several_seeds_give_a_row_each_and_their_medians(tmp_path: Path) -> None:
    rows = _bench(tmp_path, "--schedules", "sequential,lanes", "--seed", "5", "--seeds", "3")
    names = [(row["schedule"], row["seed"], row["seeds"]) for row in rows]
    assert names[:2] == [("sequential", 5, 1), ("lanes", 5, 1)]
    assert names[2:] == [("lanes", 6, 1), ("lanes", 7, 1), ("lanes", None, 3)]
    *single, medians = rows[1:]
    assert medians["env_steps_per_s"] == median(row["env_steps_per_s"] for row in single)
    assert rows[0]["transitions_sha256"] == rows[1]["transitions_sha256"]
    assert len({row["transitions_sha256"] for row in single}) == 3


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--schedules", "sequential,random"),
            "'sequential,random'; expected some of sequential, phased",
        ),
        (("--schedules", ","), "--schedules is ''"),
        (("--sweep-lanes", "4,0"), "--sweep-lanes has '0'"),
        (("--max-workers", "many"), "--max-workers has 'many'"),
        (("--encoder", "hashing:x"), "'hashing:x'"),
        (("--faults", "faults.json"), "--faults"),
    ],
)
def test_what_cannot_be_timed_is_one_line(
    flags: tuple[str, ...], says: str, capsys: Capture
) -> None:
    assert execute(("bench", *EMBEDDED, *flags)) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("wire", ["{}", "openai:{}/v1"])
def test_on_another_server_equal_replies_are_counted_after_a_warm_up_of_all_work(
    wire: str, simulator: EmbeddedServer, tmp_path: Path, capsys: Capture
) -> None:
    flags = ("--target-model", "sim-model", "--sweep-lanes", "1,3", "--seeds", "2")
    rows = _bench(tmp_path, *flags, host=wire.format(simulator.host))
    rows = [row for row in rows if row["num_processes"] == 3 and row["seed"] == 0]
    assert [row["schedule"] for row in rows] == [
        "sequential",
        "sequential again",
        "phased",
        "lanes",
    ]
    assert len({row["transitions_sha256"] for row in rows}) == 1
    assert {(row["llm_calls"], row["failed_calls"], row["unscored_steps"]) for row in rows} == {
        (24, 0, 0)
    }
    assert [row["equal_replies"] for row in rows] == [None, 1, 1, 1]
    assert [row["compared_replies"] for row in rows] == [0, 24, 24, 24]
    for row in rows:
        assert row["simulated"]
        assert row["slots"] == (16 if "openai" in wire else None)  # Ollama does not say
        assert not row["slots"] or row["busy_slots"] == pytest.approx(
            3 * row["fraction_of_bound"], rel=0.01
        )
    shown, said = capsys.readouterr()
    assert "SIMULATED" in shown
    assert "100 % of 24" in shown
    begun = [line for line in said.splitlines() if line.endswith("...")]
    warm_ups = [line.startswith("warming up, not counted") for line in begun]
    of_lanes = [True, False, False, False, True, False, False, False]  # each seed has its own
    assert warm_ups == 2 * of_lanes


def test_lanes_in_processes_have_equal_replies_and_no_figures_of_calls(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    flags = ("--target-model", "sim-model", "--schedules", "lanes,gym-async")
    here, apart = _bench(tmp_path, *flags, host=simulator.host)
    assert apart["equal_replies"] == 1
    assert apart["completion_tokens"] == here["completion_tokens"]
    assert apart["llm_calls"] is apart["busy_slots"] is None


@pytest.mark.parametrize("simulated", [False, True])
def test_where_replies_differ_their_share_is_told_and_on_a_simulator_it_is_an_error(
    simulated: bool,  # noqa: FBT001 - a parameter of pytest's
    tmp_path: Path,
    capsys: Capture,
) -> None:
    """Rewordings are equal each time, and no two answers are."""
    numbers = count()

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            models = {"models": [{"details": {"format": FORMAT}}]} if simulated else {}
            return 200, {"data": [{"id": "m"}], "total_slots": 2} | models
        text = f"Do {next(numbers)}." if body["max_tokens"] == 24 else "unchanged rewording"
        return 200, {  # as llama.cpp's server has it
            "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 7},
            "timings": {"prompt_ms": 1, "predicted_ms": 4},
        }

    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(f"question number {k} of many" for k in range(20)))
    with ScriptedServer(answer) as server:
        flags = ("--num-predict", "24", "--target-system", "Be brief.", "--queries", str(queries))
        rows = _bench(tmp_path, *flags, host=f"openai:{server.host}", code=int(simulated))
    asked = [
        body["messages"][0]
        for body in server.bodies
        if body.get("max_tokens") == 24 and "messages" in body
    ]
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


@pytest.mark.parametrize("failing", [1, 5])
def test_steps_without_a_score_are_said_and_if_all_are_the_warm_up_ends_it(
    failing: int, tmp_path: Path, capsys: Capture
) -> None:
    """Every call fails, or every fifth, on a server that says neither its slots nor how long calls take."""
    numbers = count(1)

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}
        if next(numbers) % failing == 0:
            return 400, {"error": "out of order"}
        return 200, SAID | {"model": "m", "message": {"role": "assistant", "content": "Yes."}}

    flags = ("--target-model", "m", "--call-attempts", "1", "--schedules", "sequential")
    with ScriptedServer(answer) as server:
        if failing == 1:
            assert execute(("bench", "--ollama-host", server.host, *flags)) == 1
            said = capsys.readouterr().err.splitlines()[-1]
            assert "no step could be scored" in said
            assert "out of order" in said
            return
        first, _ = _bench(tmp_path, *flags, host=server.host)
    assert 0 < first["unscored_steps"] < 16
    unknown = (
        "slots",
        "slot_utilisation",
        "bound_env_steps_per_s",
        "fraction_of_bound",
        "busy_slots",
    )
    assert {first[key] for key in unknown} == {first["speedup"]} == {None}
    shown, said = capsys.readouterr()
    assert "slots: unknown" in shown
    assert f"{first['unscored_steps']} of 16 steps could not be scored" in said
