"""Decides what counts as a turn of the model, parses turns, and prepares them to be sent back to an engine.

response_validity.py   distinguishes a turn of the model from the empty response of a broken engine, and parses its JSON
tool_calls.py          normalizes tool calls for the record, and for requests to an engine
"""
