"""Tests of the simulator: its laws, seen through real clients or in virtual time."""
