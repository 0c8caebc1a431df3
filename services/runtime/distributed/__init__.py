"""One run on several hosts: one ng_run starts the head, and others start servers that join it.

All of them use the same config files and run token. `derived_keys.py` derives the run's identity from the
token, `server_selection.py` selects the servers to start on this host, and `join.py` serves them until stopped.
"""
