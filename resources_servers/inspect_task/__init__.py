"""Environment: a task of inspect_ai, with its own solver, tools and scorers."""
