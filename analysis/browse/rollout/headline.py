"""The line above a rollout: its outcome, reward, length and end."""

from __future__ import annotations

from rich.text import Text

from rollyard.analysis.browse.list.columns import outcome
from rollyard.analysis.browse.palette import Palette
from rollyard.analysis.browse.text.visible import visible_line
from rollyard.analysis.report.formatting import NOTHING, count, number, seconds
from rollyard.analysis.viewer.api_records import RolloutLine


def headline(line: RolloutLine, palette: Palette) -> Text:
    """Return the line."""
    shown = outcome(line)
    colour = {"✓": "good", "!": "bad"}.get(shown[:1], "soft")
    found = Text(shown, palette.style(colour, bold=True), no_wrap=True, overflow="ellipsis")
    for label, value in (
        ("reward", number(line.reward)),
        ("calls", count(line.tool_calls)),
        ("turns", count(line.turns)),
        ("tokens", count(line.output_tokens)),
        ("time", seconds(line.seconds)),
        ("end", visible_line(line.end)),
        ("agent", visible_line(line.agent)),
    ):
        if value and value != NOTHING:
            found.append(f"  {label} ", palette.style("soft"))
            found.append(value, palette.style("ink"))
    return found
