"""The findings of a file, each one key away from its rollouts."""
