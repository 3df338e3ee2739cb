"""Faults and outages: a function of the request, each with its named error, nothing left behind."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.faults import Fault, FaultPlan
from simulator.process import ChildError, EmbeddedServer
from simulator.settings import Settings
from tests.simulator.conftest import Ask

BODY = {
    "model": "sim-target",
    "prompt": "Why?",
    "stream": False,
    "options": {"temperature": 0},
}


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=40),
    st.randoms(use_true_random=False),
    st.none() | st.integers(1, 3),
)
def test_a_fault_is_a_function_of_seed_request_and_occurrence(
    requests: list[bytes], chance: Any, first: int | None
) -> None:
    found = []
    for order in (requests, chance.sample(requests, len(requests))):
        plan = FaultPlan(7, [Fault(kind="drop", rate=0.5, first=first)])
        hits: dict[bytes, list[bool]] = {}
        for request in order:
            hit = plan.strike("/api/generate", request, "m:latest") is not None
            hits.setdefault(request, []).append(hit)
        found.append(hits)
    assert found[0] == found[1]
    if first is not None:  # struck at its first occurrences, or at none
        for struck in found[0].values():
            assert struck == [struck[0] and n < first for n in range(len(struck))]


def test_a_fault_for_one_model_leaves_others_alone_and_the_first_that_strikes_counts() -> None:
    faults = [Fault(kind="drop", rate=1, model="m"), Fault(kind="late", rate=1)]
    plan = FaultPlan(0, faults)
    kinds = [plan.strike("/api/chat", b"x", model) for model in ("m:latest", "n:latest")]
    assert [each.kind for each in kinds if each is not None] == ["drop", "late"]


@pytest.mark.parametrize(
    "fault", [{"kind": "late", "seconds": 0.05}, {"kind": "drop", "at": "after"}]
)
def test_a_late_reply_and_one_after_which_all_ends_are_good(
    server: EmbeddedServer, fault: dict[str, Any]
) -> None:
    def reply() -> str:  # on a connection of its own: one that was used may be over
        text: str = httpx.post(f"{server.host}/api/generate", json=BODY).json()["response"]
        return text

    good = reply()
    server.set_faults([{**fault, "rate": 1}])
    assert [reply(), reply()] == [good, good]


def test_a_client_that_leaves_frees_its_slot(server: EmbeddedServer) -> None:
    server.set_faults([{"kind": "hang", "rate": 1}])
    for _ in range(20):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.host}/api/generate", json=BODY, timeout=0.05)
    server.set_faults([])
    assert httpx.post(f"{server.host}/api/generate", json=BODY).status_code == 200
    assert server.stats()["in_flight"] == 0


def test_a_request_that_is_rejected_meets_no_fault(ask: Ask, server: EmbeddedServer) -> None:
    server.set_faults([{"kind": "status", "rate": 1}])
    assert ask("/api/generate", BODY).status_code == 500
    assert ask("/api/generate", BODY | {"model": "x"}).status_code == 404


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ([{"kind": "flood", "rate": 1}], "0.kind: Input should be 'status', 'drop'"),
        ([{"kind": "drop", "rate": 2}], "0.rate: Input should be less than or equal to 1, got 2"),
        ([{"kind": "drop", "rate": 1, "burst": 3}], "0.burst: Extra inputs are not permitted"),
        ({"kind": "drop"}, "all of it: Input should be a valid array"),
    ],
)
def test_faults_that_cannot_be_are_refused_in_one_line(ask: Ask, faults: object, says: str) -> None:
    refused = ask("/simulator/faults", faults)
    assert refused.status_code == 400
    assert says in refused.json()["error"]
    assert "\n" not in refused.json()["error"]


def test_a_file_of_faults_is_played_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text('[{"kind": "status", "rate": 1}]', encoding="utf-8")
    with EmbeddedServer(Settings(faults=str(path))) as server:
        assert httpx.post(f"{server.host}/api/generate", json=BODY).status_code == 500
    path.write_text(json.dumps([{"kind": "drop"}]), encoding="utf-8")
    with pytest.raises(ChildError, match=r"the file of faults .* 0\.rate: Field required"):
        EmbeddedServer(Settings(faults=str(path)))


def test_a_hung_server_looks_healthy_and_goes_on_at_the_end(
    ask: Ask, http: httpx.Client, server: EmbeddedServer, pool: ThreadPoolExecutor
) -> None:
    server.set_outage("hang")
    calls = [pool.submit(ask, "/api/generate", BODY | {"prompt": f"{n}?"}) for n in range(20)]
    time.sleep(0.3)
    assert not any(each.done() for each in calls)
    assert http.get("/api/tags").status_code == 200
    server.end_outage()
    assert [each.result(timeout=10).status_code for each in calls] == [200] * 20


def test_an_outage_of_all_leaves_the_control_routes_and_ends_by_itself(
    http: httpx.Client, server: EmbeddedServer
) -> None:
    server.set_outage("hang", at="all", for_s=0.6)
    with pytest.raises(httpx.ReadTimeout):
        http.get("/api/tags", timeout=0.2)
    assert server.stats()["calls"] == 0
    assert http.get("/api/tags").status_code == 200


def test_dropped_calls_are_reset_also_those_under_way(
    ask: Ask, server: EmbeddedServer, pool: ThreadPoolExecutor
) -> None:
    server.set_faults([{"kind": "late", "rate": 1, "seconds": 30}])
    under_way = pool.submit(ask, "/api/generate", BODY)
    while not server.stats()["in_flight"]:
        time.sleep(0.01)
    server.set_outage("drop")
    with pytest.raises(httpx.TransportError):
        under_way.result(timeout=5)
    with pytest.raises(httpx.TransportError):
        ask("/api/generate", BODY)
