"""An Ollama server without a model: deterministic, fast, learnable, failing on command."""
