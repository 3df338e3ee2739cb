"""What a vector environment gives, lane by lane, as the tests compare it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.batched import BatchedQueryMutationEnv

Row = tuple[Any, float, bool, bool, dict[str, Any]]
"""One lane's step: Gymnasium's five values."""


def plain(info: dict[str, Any]) -> dict[str, Any]:
    """An info without what may differ between equal runs: the seconds."""
    timeless = {k: v for k, v in info.get("usage", {}).items() if not k.endswith("_s")}
    nested = {"final_info": plain(info["final_info"])} if "final_info" in info else {}
    return info | {"usage": timeless} | nested


def row_info(infos: dict[str, Any], lane: int) -> dict[str, Any]:
    """One lane's part of a vector environment's infos."""
    return {
        key: row_info(value, lane) if isinstance(value, dict) else value[lane]
        for key, value in infos.items()
        if not key.startswith("_") and infos[f"_{key}"][lane]
    }


def written(rows: list[Row]) -> str:
    """Rows as text, the same for equal ones."""
    return json.dumps(rows, default=lambda value: value.tolist(), sort_keys=True)


def step_rows(env: BatchedQueryMutationEnv, actions: NDArray[np.int64], *, apart: bool) -> list[Row]:
    """One step in every lane, in lane order: by `step`, or apart, by `send` and `recv`."""
    if not apart:
        *parts, infos = env.step(actions)
        return [(*(part[k] for part in parts), row_info(infos, k)) for k in range(env.num_envs)]
    rows: dict[int, Row] = {}
    for lane in reversed(range(env.num_envs)):
        env.send(actions[lane : lane + 1], [lane])
    while env.pending:
        came = env.recv()
        rows |= {int(lane): tuple(row) for lane, *row in zip(*came, strict=True)}
    return [rows[lane] for lane in range(env.num_envs)]
