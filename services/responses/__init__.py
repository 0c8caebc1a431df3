"""One turn of the model, wherever it was made: what counts as one, how it is read, what may be sent back.

validity.py   a turn of the model, or a broken engine's empty answer
calls.py      tool calls as they are recorded, and as an engine can be given them again
lenient.py    JSON with half surrogate pairs
"""
