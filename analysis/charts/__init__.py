"""Accessible SVG charts without scripts, for the report and the viewer.

Horizontal positions are percentages, so that a chart fills any width; `charts.css` has colours and fonts.
"""
