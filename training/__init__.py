"""Trains the policy on rollouts of a running stack (README.md). Only `trl/` imports torch."""
