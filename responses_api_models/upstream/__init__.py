"""Calls to an OpenAI-compatible endpoint or a pool of engines: retries, affinity, errors."""
