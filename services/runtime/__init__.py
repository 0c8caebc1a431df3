"""Starts, watches, restarts and stops the servers of a run, on one host or several."""
