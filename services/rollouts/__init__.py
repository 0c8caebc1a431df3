"""Collects rollouts and keeps the files of a collection: rollouts, failures, manifest and status."""
