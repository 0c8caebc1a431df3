"""Numbers to accessible SVG charts, for the report's page and the viewer alike. No HTTP, no files, no script.

Horizontal positions are percentages and vertical ones pixels: a chart fills any width, and its text keeps its size.
Colours, fonts and margins are in `charts.css`, in the custom properties of the page that shows the chart.
"""
