"""Shows a training run: its curves, and the rollouts of each step."""
