"""What the viewer's page asks for: records of rollouts, lists, comparisons."""
