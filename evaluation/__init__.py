"""Policies compared on held-out queries: missions and teams, episodes side by side, statistics."""
