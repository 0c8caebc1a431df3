"""Where the style sheet of the charts is; a page that shows charts includes it."""

from __future__ import annotations

from pathlib import Path

STYLE = Path(__file__).parent / "charts.css"
