"""Reads the recorded tokens of rollout rows."""
