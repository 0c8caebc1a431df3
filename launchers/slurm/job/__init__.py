"""What runs inside a SLURM job: the command, its signals, its successor, containers and Ray."""
