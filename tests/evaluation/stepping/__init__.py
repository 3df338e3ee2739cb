"""Tests of the ways to step policies."""
