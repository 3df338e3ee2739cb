"""Tests of search/optimizing."""
