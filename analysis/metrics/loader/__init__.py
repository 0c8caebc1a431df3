"""Parses rollout files into columns."""
