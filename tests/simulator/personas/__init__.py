"""Tests of simulator/personas/."""
