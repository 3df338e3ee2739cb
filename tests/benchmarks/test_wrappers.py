"""Each wrapper is held against stepping one by one, in the same run."""

from __future__ import annotations

from benchmarks.wrappers import rows


def test_every_policy_is_timed_under_its_own_wrapper_and_under_auto() -> None:
    found = rows(step_s=0.01, agents=2, steps=1, runs=1)
    assert {(row["policy"], row["wrapper"]) for row in found} >= {
        (policy, wrapper)
        for policy, own in (
            ("waits 10 ms", "thread"),
            ("computes 10 ms in Python", "process"),
            ("has step_batch", "batch"),
            ("has a torch network", "torch"),
        )
        for wrapper in (own, "auto")
    }
    for row in found:
        assert row["times_faster"] > 0
        assert bool(row["picked"]) == (row["wrapper"] == "auto")
