"""Turns untrusted text into lines of a terminal: visible characters, numbers, Markdown, boards within prose."""
