"""Fingerprints the code of servers, which is part of a run's identity: files, imports, and declared packages."""
