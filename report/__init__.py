"""A page to look at: any run folders as one HTML file that needs nothing else."""
