"""Reads time limits in the formats of `sbatch --time`."""

from __future__ import annotations

import re

from rollyard.records.errors import OperatorError

_FORMAT = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def seconds_of(time: str) -> float | None:
    """Return the seconds of a time limit; None if it is unlimited.

    Formats: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
    days-hours:minutes:seconds. Raises OperatorError for any other.
    """
    if time.upper() in ("UNLIMITED", "INFINITE"):
        return None
    if not (match := _FORMAT.fullmatch(time)):
        raise OperatorError(f"time={time}: expected hours:minutes:seconds, days-hours:minutes:seconds, or minutes")
    days, first, second, third = (int(part) if part else None for part in match.groups())
    if days is not None:
        hours, minutes, seconds = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first or 0, second or 0, third
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    return float((days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)
