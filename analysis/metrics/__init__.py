"""Computes the metrics of rollout files.

`load` reads a file into columns, and `run_plan` determines how many rollouts are expected. The other modules contain
pure functions: `profile` computes the metrics of one run, `comparison` and `run_pair` those of a pair of runs, all
using `estimators`.
"""
