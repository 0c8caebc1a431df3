"""The web page over rollout files."""
