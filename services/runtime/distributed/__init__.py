"""One run on several hosts: one ng_run starts the head, others start servers that join it.

All of them use the same config files and the same run token. `derived_keys.py` derives the run's identity from the
token, `server_selection.py` selects the servers to start on this host, and `join.py` serves them until stopped.
"""
