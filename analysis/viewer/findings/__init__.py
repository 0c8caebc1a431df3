"""Shows what stands out in a run: the findings, and all rollouts of one of them."""
