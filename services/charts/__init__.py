"""Draws accessible SVG charts for the report and the viewer, without HTTP, files or scripts.

Horizontal positions are percentages and vertical ones pixels, so that a chart fills any width and its text keeps its
size. Colours, fonts and margins are in `charts.css`, which uses custom properties of the embedding page.
"""
