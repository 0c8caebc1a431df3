"""Chosen rollouts and all numbers as one HTML file."""
