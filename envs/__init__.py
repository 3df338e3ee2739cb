"""Gymnasium environments whose step is one mutation of a query and one answer to it."""

from envs.registration import register_envs

register_envs()
