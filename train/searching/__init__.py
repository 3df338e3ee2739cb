"""What `mutagym evolve`, `select` and `optimize` share: flags, run folder, metrics, progress, resuming."""
