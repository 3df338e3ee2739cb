"""What the simulator is told when it starts: by flags, and by Ollama's own variables."""

from __future__ import annotations

import pytest

from simulator.keep_alive import FOR_EVER_S
from simulator.profiles import PROFILES
from simulator.settings import Settings, settings_from_environment


def test_settings_leave_to_the_profile_what_ollama_leaves_to_the_machine() -> None:
    assert Settings(profile="gb10").limits.max_loaded_models == 3
    assert Settings(profile="gb10", max_loaded_models=1).limits.max_loaded_models == 1
    assert Settings(profile="ideal").limits.max_loaded_models > 1e9
    assert Settings().limits.memory_gb > 1e9
    assert Settings(memory_gb=8, keep_alive="-1s").limits.keep_alive_s == FOR_EVER_S
    assert Settings(keep_alive="-1").limits.keep_alive_s == FOR_EVER_S
    assert Settings(keep_alive="90").limits.keep_alive_s == 90
    assert all(PROFILES[name].load_gb_per_s <= 6 for name in PROFILES if name != "ideal")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"slots": 0}, "slots must be between 1 and 65536, got 0"),
        ({"profile": "abacus"}, "profile must be one of"),
        ({"time_scale": -1}, "time scale must be 0 or a positive number"),
        ({"time_scale": float("nan")}, "time scale must be 0 or a positive number"),
        ({"port": 99_999}, "port must be between 0 and 65535"),
        ({"reply_tokens": "lots"}, "reply tokens must be"),
        ({"max_queue": -1}, "max_queue must be 0 or a positive number, got -1"),
        ({"max_loaded_models": -3}, "max_loaded_models must be 0 or a positive number, got -3"),
        ({"memory_gb": float("nan")}, "memory_gb must be 0 or a positive number, got nan"),
        ({"keep_alive": "soon"}, "keep_alive must be a duration such as '5m' or a number .* got 'soon'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Settings(**settings)  # type: ignore[arg-type] # wrong values are the point


@pytest.mark.parametrize(("text", "slots"), [("", 1), ("0", 1), ("4", 4)])
def test_ollama_s_variable_sets_the_slots(monkeypatch: pytest.MonkeyPatch, text: str, slots: int) -> None:
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", text)
    assert settings_from_environment().get("slots", 1) == slots


def test_ollama_s_variables_set_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MAX_QUEUE": "0", "MAX_LOADED_MODELS": "2", "KEEP_ALIVE": "90", "NUM_PARALLEL": "0"}
    for name, value in given.items():
        monkeypatch.setenv(f"OLLAMA_{name}", value)
    assert settings_from_environment() == {"max_queue": 0, "max_loaded_models": 2, "keep_alive": "90s"}
    monkeypatch.setenv("OLLAMA_KEEP_ALIVE", "-1")
    assert Settings(keep_alive=settings_from_environment()["keep_alive"]).limits.keep_alive_s == FOR_EVER_S


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("OLLAMA_NUM_PARALLEL", "many", "OLLAMA_NUM_PARALLEL must be a whole number, got 'many'"),
        ("OLLAMA_KEEP_ALIVE", "ages", "OLLAMA_KEEP_ALIVE must be a duration .* got 'ages'"),
    ],
)
def test_a_variable_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=says):
        settings_from_environment()
