"""State and results of the jobs of a launch."""
