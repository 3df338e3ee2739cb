"""`mutagym doctor`: what it finds on servers of known slots and rooms, and that it only looks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.ollama_utils.scripted import ScriptedServer

FEW = ("--num-processes", "2")
ONE = ("--target-model", "sim-model")
TWO = ("--target-model", "sim-target", "--mutator-model", "sim-mutator")


def _found(folder: Path, host: str, *flags: str) -> dict[str, Any]:
    path = folder / "found.json"
    assert execute(("doctor", "--ollama-host", host, "--seconds", "6", *flags, "--json", str(path))) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def roomy() -> Iterator[EmbeddedServer]:
    """Four slots, and room for all models; calls take long enough for them to be seen to wait."""
    with EmbeddedServer(Settings(slots=4, time_scale=0.15, reply_tokens="16")) as server:
        yield server


def test_it_names_the_slots_and_times_every_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--reward", "judge", "--slots", "4", "--time-scale", "0.2")
    found = _found(tmp_path, "embedded", *FEW, *flags)
    (row,) = found["slots"]
    assert row["host"] == "embedded"
    assert row["slots"] == found["burst"]["slots"] > 1
    assert [each["role"] for each in found["alone"]] == ["mutator", "target", "judge"]
    assert all(each["call_s"] > 0 for each in found["alone"])
    shown, said = capsys.readouterr()
    assert "SIMULATED" in shown
    assert f"sim-model at embedded: serves {row['slots']}" in shown
    assert f"at most {found['calls']['announced']} calls" in said.splitlines()[0]


def test_it_looks_and_changes_nothing_and_sends_what_it_announced(
    roomy: EmbeddedServer, tmp_path: Path
) -> None:
    before = _found(tmp_path, roomy.host, *FEW, *TWO)["servers"]
    roomy.reset_stats()
    found = _found(tmp_path, roomy.host, *FEW, *TWO)
    assert found["servers"][0]["pulled"] == before[0]["pulled"]
    assert found["servers"][0]["loaded"].keys() >= {"sim-target:latest", "sim-mutator:latest"}
    assert found["servers"][0]["version"]
    assert 0 < found["calls"]["sent"] <= found["calls"]["announced"]
    stats = roomy.stats()
    assert stats["calls"] == found["calls"]["sent"]
    assert stats["failed"] == 0


def test_models_that_stay_loaded_together_are_told_from_those_that_do_not(
    roomy: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three = (*TWO, "--encoder", "ollama:sim-embed")
    found = _found(tmp_path, roomy.host, *FEW, *three)
    assert found["calls"]["sent"] <= found["calls"]["announced"]
    assert found["residency"]["models"] == ["sim-mutator", "sim-target", "sim-embed"]
    assert found["residency"]["displaced"] == []
    assert "stay loaded together" in capsys.readouterr().out
    with EmbeddedServer(Settings(time_scale=0.001, max_loaded_models=1)) as narrow:
        found = _found(tmp_path, narrow.host, *FEW, *TWO)
    assert "sim-mutator" in found["residency"]["displaced"]
    assert "do NOT stay loaded together" in capsys.readouterr().out
    (advice,) = [each for each in found["advice"] if "OLLAMA_MAX_LOADED_MODELS=2" in each["do"]]
    assert "leave the memory" in advice["why"]


def test_fewer_slots_than_lanes_are_said_with_what_to_do(
    roomy: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _found(tmp_path, roomy.host, *ONE, "--num-processes", "8")
    (slots,) = [each for each in found["advice"] if "OLLAMA_NUM_PARALLEL=8 ollama serve" in each["do"]]
    assert "4 slots for 8 lanes" in slots["why"]
    assert f"advice: {slots['do']}" in capsys.readouterr().out


def test_over_openai_s_wire_what_the_server_does_not_tell_is_said_to_be_untold(
    roomy: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _found(tmp_path, f"openai:{roomy.host}/v1", *FEW, *TWO)
    server = found["servers"][0]
    assert server["version"] is server["loaded"] is found["residency"]["displaced"] is None
    assert server["slots"] == found["slots"][0]["slots"] == 4
    shown = capsys.readouterr().out
    assert shown.count("not told by this server") == 3
    assert "told by the server" in shown


def _unequal(body: dict[str, Any], numbers: Iterator[int]) -> tuple[int, object]:
    """A server that says neither slots nor times, and never the same twice."""
    if "model" not in body:
        return 200, {"data": [{"id": "m\x1b[2J"}, {"id": "m"}]}
    text = f"Answer number {next(numbers)}."
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


def test_a_server_that_answers_equal_requests_unequally_and_tells_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = count()
    with ScriptedServer(lambda body: _unequal(body, numbers)) as server:
        found = _found(tmp_path, f"openai:{server.host}", *FEW, "--target-model", "m")
    assert found["burst"]["equal_alone"] == found["burst"]["equal_full"] == 0
    assert found["burst"]["asked_alone"] == 4
    assert found["slots"][0]["slots"] is None
    assert found["burst"]["tokens_per_s_full"] is None
    shown = capsys.readouterr().out
    assert "0 of 4 got equal replies alone" in shown
    assert "\x1b" not in shown


def test_what_a_run_would_count_as_unscored_does_not_end_it(tmp_path: Path) -> None:
    """A model that thinks for long leaves some replies without a word."""
    thinks = ("--target-model", "sim-thinker", "--mutator-model", "sim-model", "--num-predict", "128")
    shape = ("--reply-tokens", "lognormal:mean=60,sigma=1.0", "--time-scale", "0.01")
    found = _found(tmp_path, "embedded", *FEW, *thinks, *shape)
    assert [each["role"] for each in found["alone"]] == ["mutator", "target"]


def test_slots_are_enough_where_each_server_has_as_many_as_its_part_of_the_lanes(tmp_path: Path) -> None:
    with EmbeddedServer(Settings(slots=2, time_scale=0.01)) as one, EmbeddedServer(one.settings) as other:
        hosts = (f"openai:{each.host}/v1" for each in (one, other))
        flags = ("--ollama-host", next(hosts), *ONE, "--num-processes", "4")
        found = _found(tmp_path, next(hosts), *flags)
    assert [each["slots"] for each in found["slots"]] == [2, 2]
    assert not [each["do"] for each in found["advice"] if "slots" in each["why"]]


def test_where_no_model_is_named_it_tells_what_it_can(
    roomy: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roomy.reset_stats()
    found = _found(tmp_path, roomy.host)
    assert roomy.stats()["calls"] == 0
    assert "sim-model:latest" in found["servers"][0]["pulled"]
    assert "burst" not in found
    assert "name a model, as in --target-model" in capsys.readouterr().out


def test_nobody_there_no_model_there_or_a_broken_one_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(("doctor", "--ollama-host", "http://127.0.0.1:9")) == 2
    assert "ollama serve" in capsys.readouterr().err.splitlines()[-1]
    with ScriptedServer(lambda _body: (200, {"models": []})) as server:
        assert execute(("doctor", "--ollama-host", server.host)) == 2
    assert "ollama pull" in capsys.readouterr().err.splitlines()[-1]

    def broken(body: dict[str, Any]) -> tuple[int, object]:
        if "model" in body:
            return 400, {"error": "out of order"}
        return 200, {"models": [{"model": "m:latest"}], "version": "1"}

    with ScriptedServer(broken) as server:
        assert execute(("doctor", "--ollama-host", server.host, "--target-model", "m")) == 1
    assert "out of order" in capsys.readouterr().err.splitlines()[-1]
