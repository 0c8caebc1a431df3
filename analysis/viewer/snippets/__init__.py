"""The parts of rollouts that a text search matched."""
