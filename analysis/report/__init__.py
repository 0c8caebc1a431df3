"""Renders metrics as Markdown, JSON and a single HTML page.

`sections`, `comparison_report` and `finding_sections` turn the records of `analysis/metrics` into text, tables and
charts (`analysis/charts`). `markdown` and `html` render the same sections. Names from rollouts are untrusted and are
escaped when rendered.
"""
