"""Finds the rollouts that a rollout is worth comparing with, turn by turn."""
