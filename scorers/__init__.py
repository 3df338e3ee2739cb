"""What an answer is worth, and how sure we are of it."""
