"""Prompts, models and policies searched for without Gymnasium or SB3."""
