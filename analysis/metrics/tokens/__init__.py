"""Figures of the generated tokens of a run: by text, turn, position and policy version."""
