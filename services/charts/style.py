"""The path of the charts' style sheet, which a page with charts must include."""

from __future__ import annotations

from pathlib import Path

STYLE = Path(__file__).parent / "charts.css"
