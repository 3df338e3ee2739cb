"""The world that is served by default, read once for all tests: it never changes, and is read in 0.1 s."""

from __future__ import annotations

from simulator.world import load_world

CAUTIOUS = load_world("cautious")
