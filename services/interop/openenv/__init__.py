"""Serves an environment over OpenEnv's protocol."""
