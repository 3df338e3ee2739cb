"""Policies that choose the next mutator: baselines, bandits, a model that is asked, a user's own."""
