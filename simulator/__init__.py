"""A server that speaks Ollama's HTTP API, with a clock and personas instead of weights."""
