"""Tests of mutators/."""
