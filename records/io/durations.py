"""Formats durations."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Format a duration as `4.2 s`, `47 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"
