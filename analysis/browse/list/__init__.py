"""The list of rollouts: which ones, their columns, and the table that scrolls over them."""
