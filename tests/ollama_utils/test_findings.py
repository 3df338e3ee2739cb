"""What a run says of its servers' slots."""

from __future__ import annotations

from ollama_utils.capacity import CapacityEstimate
from ollama_utils.connect import EMBEDDED, ServerConfig, SimulatorConfig, connect
from ollama_utils.findings import STEADY, Findings

HOST = "http://127.0.0.1:11434"


def found(
    slots: int | None, limit: int = 1, spread: int = 0
) -> dict[tuple[str, str], CapacityEstimate]:
    least, most = (slots - spread, slots + spread) if slots else (None, None)
    estimate = CapacityEstimate(
        limit=limit, slots=slots, least_slots=least, most_slots=most, queue_s=0.0, service_s=1.0
    )
    return {(HOST, "llama3.2"): estimate}


def reported(findings: Findings, what: dict[tuple[str, str], CapacityEstimate]) -> list[str]:
    """The lines of findings that stay the same for a while."""
    return [line for _ in range(STEADY) for line in findings.news(what)]


def test_few_slots_come_with_the_setting_that_gives_more_and_no_promise() -> None:
    (line,) = reported(Findings(16), found(1))
    assert line == (
        f"server {HOST} runs 1 slot for 'llama3.2', and 16 lanes share it: "
        "OLLAMA_NUM_PARALLEL=8 gives it more. "
        "What they bring depends on the machine (much on most GPUs, little on a CPU): compare two runs"
    )


def test_slots_are_told_with_the_spread_of_the_measurement() -> None:
    (line,) = reported(Findings(4), found(8, limit=12, spread=1))
    assert line.endswith("runs 8 slots (7 to 9) for 'llama3.2', kept busy by 12 calls in flight")


def test_no_more_slots_are_advised_than_there_are_lanes() -> None:
    (line,) = reported(Findings(4, "--slots "), found(2))
    assert ": --slots 4 gives it more" in line
    (line,) = reported(Findings(2), found(2, limit=2))
    assert line.endswith("runs 2 slots for 'llama3.2', kept busy by 2 calls in flight")


def test_nothing_is_said_before_slots_are_known_and_nothing_twice() -> None:
    findings = Findings(16)
    assert not reported(findings, found(None))
    assert len(reported(findings, found(8, limit=9))) == 1
    assert not reported(findings, found(7, limit=7))
    assert len(reported(findings, found(2, limit=2))) == 1


def test_slots_that_come_and_go_are_not_told() -> None:
    findings = Findings(16)
    assert not [line for slots in (1, 1, 2, 1, 2, 2) for line in findings.news(found(slots))]


def test_slots_that_are_known_are_not_estimated() -> None:
    findings = Findings(10, "--slots ", slots=8)
    (line,) = reported(findings, found(3, limit=4))
    assert " runs 8 slots " in line
    assert not reported(findings, found(1, limit=1))


def test_the_embedded_simulators_slots_are_those_it_was_given() -> None:
    """Its calls may be too short to measure: eight slots were called one, and eight were advised."""
    config = ServerConfig(ollama_host=(EMBEDDED,), simulator=SimulatorConfig(slots=8))
    with connect(config) as connection:
        (line,) = reported(connection.findings(16), found(1, limit=12))
    assert line.endswith("runs 8 slots for 'llama3.2', kept busy by 12 calls in flight")


def test_looks_that_follow_each_other_at_once_count_as_one() -> None:
    assert not reported(Findings(16, apart_s=3600.0), found(1))
