"""Tests of ollama_utils/."""
