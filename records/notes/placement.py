"""Finds the rows that records are about, by content."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rollyard.records.notes.record import RolloutRef


def placed(refs: Iterable[RolloutRef], rows: Iterable[tuple[int, RolloutRef]]) -> dict[RolloutRef, int]:
    """Return the place of each rollout among `rows`, which are places with the identities of their rows.

    A rollout is the row with the same task key, response key and repeat; among duplicate tasks, that with the same task
    index. If no row has its repeat, because a file was merged or its repeats were numbered again, it is a row with the
    same task key and response key that is not another rollout of `refs`. A rollout without such a row is left out: it
    is no longer in the file, and a row with another response never takes its place.
    """
    by_content: defaultdict[tuple[str, str], list[tuple[int, RolloutRef]]] = defaultdict(list)
    for place, row in rows:
        by_content[row.task_key, row.response_key].append((place, row))
    found: dict[RolloutRef, int] = {}
    others: list[RolloutRef] = []
    for ref in dict.fromkeys(refs):
        same = [(place, row) for place, row in by_content.get(_content(ref), ()) if row.repeat == ref.repeat]
        if same:
            found[ref] = next((place for place, row in same if row.task == ref.task), same[0][0])
        else:
            others.append(ref)
    taken = set(found.values())
    for ref in others:
        candidates = [place for place, _ in by_content.get(_content(ref), ())]
        if candidates:
            found[ref] = next((place for place in candidates if place not in taken), candidates[0])
            taken.add(found[ref])
    return found


def _content(ref: RolloutRef) -> tuple[str, str]:
    return ref.task_key, ref.response_key
