"""Evaluations of a policy beyond its own worlds: other people's harnesses, checkpoint by checkpoint."""
