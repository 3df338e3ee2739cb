"""Tests of ollama_utils/simulator/personas/."""
