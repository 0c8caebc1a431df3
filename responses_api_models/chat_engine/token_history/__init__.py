"""The token history of an episode, and the prompts that continue it."""
