"""Collects rollouts and manages the files of a collection: rollouts, failures, manifest and status."""
