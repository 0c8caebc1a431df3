"""Exports selected rollouts and all metrics as one HTML file."""
