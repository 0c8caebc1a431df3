"""Evaluates checkpoints with external harnesses."""
