"""Processes of a run: starting, watching, restarting and stopping servers on one machine or many."""
