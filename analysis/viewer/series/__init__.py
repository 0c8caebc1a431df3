"""Shows files as the steps of a series: curves, tasks by step, and what was learned and forgotten between two steps."""
