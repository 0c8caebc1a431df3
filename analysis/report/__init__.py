"""Renders metrics as Markdown, JSON and a single HTML page. Names from rollouts are untrusted and escaped."""
