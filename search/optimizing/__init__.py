"""What the hybrid search is made of: prompts by section, actors, rewards, scores."""
