"""The world that is served by default, read once for all tests."""

from __future__ import annotations

from simulator.world import load_world

CAUTIOUS = load_world("cautious")
