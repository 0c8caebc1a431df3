"""The run's head: servers register with it, and clients look up the servers' addresses."""
