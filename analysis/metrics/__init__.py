"""Computes the metrics of rollout files.

`loader` reads a file into columns, and `run_plan` determines how many rollouts are expected. The other modules contain
pure functions: `profile` computes the metrics of one run and `comparison` those of a pair of runs, both using
`estimators`.
"""
