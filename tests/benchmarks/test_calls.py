"""What a call costs is measured for every client, on calls that all went out and came back."""

from __future__ import annotations

from benchmarks.calls import REPLY_S, rows


def test_every_client_has_a_row_of_plain_figures_within_what_the_server_allows() -> None:
    found = rows(in_flight=(4,), runs=1)
    assert len({row["client"] for row in found}) == len(found) == 4
    for row in found:
        assert row["in_flight"] == 4
        assert row["failed"] == 0
        assert 0 < row["calls_per_s"] <= row["most_calls_per_s"] == 4 / REPLY_S
        assert row["cpu_s_per_1000_calls"] > 0
