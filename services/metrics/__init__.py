"""Computes the metrics of rollout files. `loader` reads a file into columns and `run_plan` finds how many rollouts are
expected. The rest are pure functions: `profile` (one run) and `comparison` (two) combine the `estimators` into records.
"""
