"""Timed rollouts: lanes in processes of their own, speed-ups and medians."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.mission import MissionConfig
from envs.queries import Query
from ollama_utils.connect import Roles, ServerConfig
from tests.envs.worlds import HOW, Script
from train.timing import LaneConfig, Worker, compared


def test_a_lane_in_a_process_of_its_own_calls_as_the_flags_say() -> None:
    """The word on thoughts stands for all flags, for `connect` reads them in the same place."""
    mission = MissionConfig(mutators=("paraphrase",), encoder="hashing:16")
    with Script() as script:
        lane = LaneConfig(
            mission=mission,
            roles=Roles(target="target", mutator="mutator", judge=None),
            queries=[Query(text=HOW, group=HOW, row=1)],
            server=ServerConfig(mutator_think="on"),
        )
        env = Worker(lane, [script.host])
        env.reset(seed=0)
        env.step(np.int64(0))
        assert script.asked("mutator")[0]["think"] is True
        env.unwrapped.models.dispatcher.close()  # type: ignore[attr-defined]  # Gymnasium's type


def row(schedule: str, seed: int, wall_s: float, tokens: int = 1000) -> dict[str, Any]:
    """What `time_rows` gives, as much of it as is compared."""
    group = {"schedule": schedule, "num_processes": 4, "max_workers": 4, "seed": seed}
    speed = {"wall_s": wall_s, "env_steps_per_s": 16 / wall_s, "completion_tokens": tokens}
    replies = {"equal_replies": 1.0, "compared_replies": 8, "equal_transitions": True}
    return group | speed | replies | {"transitions_sha256": f"of seed {seed}", "simulated": True}


def test_a_seed_with_longer_replies_is_no_slower_and_medians_stand_behind_their_rows() -> None:
    rows = [
        row("sequential", 0, 8),
        row("lanes", 0, 1),
        row("lanes", 1, 2, tokens=2000),
        row("phased", 0, 4),
    ]
    found = compared(rows)
    assert [each["speedup"] for each in found] == [1, 8, 8, 8, 2]
    medians = found[3]
    same = {"schedule": "lanes", "num_processes": 4, "wall_s": 1.5, "seeds": 2, "simulated": True}
    none = dict.fromkeys(("seed", "transitions_sha256", "equal_replies", "compared_replies"))
    assert {key: medians[key] for key in same | none} == same | none
