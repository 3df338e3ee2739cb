"""The commands: the only code besides benchmarks/ that parses arguments, prints, or writes under runs/."""
