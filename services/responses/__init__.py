"""Decides what counts as a turn of the model, parses turns, and prepares them to be sent back to an engine.

response_validity.py   distinguishes a turn of the model from the empty response of a broken engine
tool_calls.py          tool calls as they are recorded, and in a form that every engine accepts
lenient_json.py        JSON with lone surrogates
"""
