"""Words: what the simulated models say, from a TOML file that describes their world."""
