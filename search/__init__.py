"""Prompts, models and policies that are searched for and compared; nothing of Gymnasium or SB3."""
