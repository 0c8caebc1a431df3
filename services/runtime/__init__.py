"""Processes of a run: start, watch, restart and stop servers on one host or several."""
