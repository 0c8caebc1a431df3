"""The token ids of an episode, turn by turn, and how the next prompt continues them."""
