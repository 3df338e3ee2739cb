"""Which combination of models, prompts and other choices does best on a dataset."""
