"""Accessible SVG charts without scripts, for the report and the viewer. `charts.css` has colours and fonts."""
