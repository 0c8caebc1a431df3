"""Converts between OpenAI's Responses and Chat Completions, with pure functions on plain dicts."""
