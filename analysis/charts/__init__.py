"""Draws accessible SVG charts for the report and the viewer. It does no network or file I/O, and the charts contain no
scripts.

Horizontal positions are percentages and vertical positions are pixels, so a chart fills any width while its text keeps
its size. Colours, fonts and margins are defined in `charts.css`, which uses custom properties of the embedding page.
"""
