"""Builds the responses of the viewer's API: rollouts, lists and comparisons."""
