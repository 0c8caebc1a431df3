"""Formats short numbers for ticks, tooltips and labels."""

from __future__ import annotations

_NOISE = 1e-12
"""Absolute values below this are treated as rounding errors and shown as 0."""
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k"))


def pluralize(number: int, noun: str) -> str:
    """Format a count with its noun: `1 rollout`, `3,200 rollouts`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short(value: float) -> str:
    """Format a number with four significant digits and no trailing zeros: `0.9305`, `−2.639`, `12.35k`, `5e+59`."""
    size = abs(value)
    if size < _NOISE:
        return "0"
    if size >= 1e15 or size < 1e-4:
        text = f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e+")
    elif size >= 1e4:
        unit, name = next((unit, name) for unit, name in _UNITS if size >= unit)
        divisor = 1e3 if name == "k" else unit
        text = f"{float(f'{value / divisor:.4g}'):,g}{name}"
    else:
        text = f"{float(f'{value:.4g}'):,.4f}".rstrip("0").rstrip(".")
    return text if "e-" in text and not text.startswith("-") else text.replace("-", "−", 1)


def share(part: float, digits: int = 1) -> str:
    """Format a share as a percentage: `13.5%`."""
    return f"{part:.{digits}%}".replace("-", "−")


def signed(value: float) -> str:
    """Format a difference with its sign: `+0.25`."""
    return f"+{short(value)}" if value >= _NOISE else short(value)


def points(value: float) -> str:
    """Format the difference between two shares: `+3.1 points`."""
    return f"{signed(round(100 * value, 2))} points"


def seconds(value: float) -> str:
    """Format a duration: `4.1 ms`, `3.24 s`, `4 min 34 s`, `2 h 5 min`."""
    if value < 1:
        return f"{short(float(f'{1000 * value:.3g}'))} ms"
    if value < 120:
        return f"{short(float(f'{value:.3g}'))} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"
