"""Calendars whose events are as long as asked, do not overlap, and keep their constraints."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.external.nemo_gym.compatibility.catalog import Row

STEP = 15
"""Minutes between the times at which an event may start."""


def events(row: Row, right: bool) -> str:
    """The calendar that the row asks for; without its last event if it is to be wrong."""
    asked = list(row["exp_cal_state"].values())
    starts = _starts(asked, [])
    planned = [
        {
            "event_id": event["event_id"],
            "event_name": "x",
            "start_time": f"{start // 60}:{start % 60:02}",
            "duration": event["duration"],
        }
        for event, start in zip(asked, starts or [600] * len(asked), strict=True)
    ]
    return json.dumps(planned if right else planned[:-1])


def _starts(asked: list[dict[str, Any]], taken: list[tuple[int, int]]) -> list[int] | None:
    """The start of each event in minutes; None if they do not fit beside the intervals taken."""
    if not asked:
        return []
    first, *others = asked
    early, late = _window(first)
    for start in range(early, late + 1, STEP):
        end = start + first["duration"]
        if all(end <= begin or start >= finish for begin, finish in taken):
            following = _starts(others, [*taken, (start, end)])
            if following is not None:
                return [start, *following]
    return None


def _window(event: dict[str, Any]) -> tuple[int, int]:
    early, late = _minutes(event["min_time"]), _minutes(event["max_time"]) - event["duration"]
    word, _, rest = (event["constraint"] or "").partition(" ")
    times = [_minutes(time) for time in rest.split(" and ")] if rest else []
    if word in ("after", "between", "at"):
        early = max(early, times[0])
    if word in ("before", "between"):
        late = min(late, times[-1] - event["duration"])
    return early, early if word == "at" else late


def _minutes(time: str) -> int:
    found = re.fullmatch(r"(\d+)(?::(\d+))?(am|pm)?", time.strip())
    assert found is not None, time
    hour = int(found[1]) % 12 + 12 * (found[3] == "pm") if found[3] else int(found[1])
    return hour * 60 + int(found[2] or 0)
