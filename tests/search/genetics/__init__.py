"""Tests of search/genetics."""
