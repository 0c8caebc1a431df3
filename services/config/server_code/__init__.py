"""The code of a server as part of a run's identity: its files, what they import and name, the packages they declare."""
