"""The run's head: servers register with it, and clients fetch the servers' URLs from it."""
