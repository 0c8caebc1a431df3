"""Checkpoints of a training run: which are complete, and their evaluation as they appear."""
