"""Tests of docs/ and the other documents: what they say is so, and what they show runs."""
