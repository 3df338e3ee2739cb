"""What `mutagym eval` consists of: missions and teams, episodes side by side, rates, comparisons, tables."""
