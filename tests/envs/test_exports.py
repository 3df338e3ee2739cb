"""What a user imports from the room `envs`."""

from __future__ import annotations

import subprocess
import sys

import envs


def test_each_name_that_the_room_exports_can_be_imported_from_it() -> None:
    for name in envs.__all__:
        assert hasattr(envs, name)
    assert not hasattr(envs, "NoSuchEnv")


def test_importing_the_room_registers_the_environment_and_loads_nothing_heavy() -> None:
    code = "import envs, gymnasium, sys; assert envs.ENV_ID in gymnasium.registry; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert not {"torch", "stable_baselines3", "httpx", "envs.batched"} & set(loaded.stdout.split())
