"""Submits evaluations to SLURM: the original launcher's path to `ng_eval_launcher`, with the same arguments."""

from __future__ import annotations

from rollyard.cli.eval_launcher import main

if __name__ == "__main__":
    main()
