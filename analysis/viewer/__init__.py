"""The web viewer for rollout files."""
