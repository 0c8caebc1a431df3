"""Notes, labels and corrected verdicts of people and programs, in a file next to the rollouts."""
