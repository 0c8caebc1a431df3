"""Fingerprints the servers' code (files, imports and declared packages), which is part of a run's identity."""
