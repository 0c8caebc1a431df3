"""Numbers -> Markdown, JSON, and one HTML page.

`run_sections` and `run_comparison` put the records of `services/metrics` into words, tables and charts
(`services/charts`); `markdown` and `html` are two ways to write the same sections down. Names found in rollouts are
hostile text until written.
"""
