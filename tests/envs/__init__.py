"""Tests of envs/."""
