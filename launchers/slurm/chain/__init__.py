"""Chains: what happened to the jobs that worked on the same command, and whether another one may start."""
