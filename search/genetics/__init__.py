"""The parts of genetic search over prompts: genomes, selection, variation, evaluation."""
