"""Shows the notes, labels and verdicts of a run's rollouts, and writes those of the people who use the page."""
