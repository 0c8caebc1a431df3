"""Sends rollout files to experiment trackers: metrics over time and a sample of rollouts. One module per tracker."""
