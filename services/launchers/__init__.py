"""Launchers: where an evaluation runs, on SLURM or SageMaker."""
