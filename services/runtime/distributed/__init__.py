"""One run in several places: the head in one, servers that join it in others, each started by its own ng_run.

All of them are given the same config files and the same run token. `keys.py` derives the run's identity from the token,
`choice.py` reads which servers start in this place, `joining.py` serves them until they are told to stop.
"""
