"""Shows the clusters of a run's failed rollouts, and how they changed between two runs."""
