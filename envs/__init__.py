"""Gymnasium environments whose step is one mutation of a query and one answer to it."""
