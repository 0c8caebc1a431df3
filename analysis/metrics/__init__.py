"""Metrics of rollout files: `load` reads a file into columns, and the others are functions of columns."""
