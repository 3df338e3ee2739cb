"""Whatever a config file holds, it is taken or refused in one line: no traceback, no run begun."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from cli.main import execute
from records.settings import resolved
from train.config import TrainConfig

OTHERS = ("run-dir", "resume", "cache", "json", "config", "no-batching", "num-proceses", "a.b")
keys = st.sampled_from([*resolved(TrainConfig()), *OTHERS])
scalars = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.booleans(),
    st.dates(),
    st.sampled_from([0, 1, 0.5, 2**32, "hashing", "noop", "embedded", "judge", "phased"]),
)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.just("x"), scalars)


def written(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return f"{{x = {written(value['x'])}}}" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return str(value) if isinstance(value, float | dt.date) else json.dumps(value)


@st.composite
def config_files(draw: st.DrawFn) -> bytes:
    """A TOML file, mostly sound, perhaps with some bytes spoilt."""
    table = draw(st.dictionaries(keys, values, max_size=4))
    text = "".join(f'"{key}" = {written(value)}\n' for key, value in table.items())
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    spoilt = st.tuples(st.integers(0, 400), st.integers(0, 255))
    for place, byte in draw(st.lists(spoilt, max_size=2)) if draw(st.booleans()) else ():
        if raw:
            raw[place % len(raw)] = byte
    return bytes(raw)


# A busy machine draws slowly, which says nothing of the law.
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(config_files())
def test_a_config_file_of_any_bytes_is_taken_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raw: bytes
) -> None:
    """The last check before a server is asked is that of the query file, which is not there."""
    monkeypatch.chdir(tmp_path)  # where a cache may be made
    path = tmp_path / "config.toml"
    path.write_bytes(raw)
    assert execute(("train", "--config", str(path), "--queries", str(tmp_path / "absent.csv"))) == 2
    out, err = capsys.readouterr()
    *brought, error = err.splitlines()  # the first line says what code and hosts the file brings
    assert error.startswith("mutagym: ")
    assert all(line.startswith("config: ") for line in brought)
    assert len(brought) <= 1
    assert not out
    event("taken" if "absent.csv" in err else "refused")
