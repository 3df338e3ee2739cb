"""One short file a use; each runs on the embedded simulator: `python -m examples.train_ppo`."""
