"""Groups: the rollouts of one task in one update, which are compared with each other."""
