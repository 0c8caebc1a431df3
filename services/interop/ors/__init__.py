"""Serves an environment over ORS, the Open Reward Standard."""
