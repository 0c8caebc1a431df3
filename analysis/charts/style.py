"""Defines the path of the charts' style sheet, which every page with charts must include."""

from __future__ import annotations

from pathlib import Path

STYLE = Path(__file__).parent / "charts.css"
