"""Evaluations as SLURM jobs."""
