"""Tests of wrappers."""
