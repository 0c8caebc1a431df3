"""The run's head: servers register with it, and clients fetch the servers' addresses from it."""
