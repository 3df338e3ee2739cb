"""What is written down and read back: run folders, JSON lines, settings, metrics, progress."""
