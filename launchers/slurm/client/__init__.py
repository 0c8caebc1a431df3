"""Calls to SLURM's commands."""
