"""Turns a rollout's recorded tokens into sequences that a trainer can put through its model."""
