"""Counts failed attempts, and the rollouts that were lost or recovered."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.failure_records import FailureKindCount, Failures
from rollyard.analysis.metrics.loader.columns import Columns, Ints
from rollyard.analysis.metrics.run_plan import Attempts
from rollyard.records.scores.confidence_intervals import share_bounds


def failures(columns: Columns, attempts: Attempts) -> Failures:
    """Count the rows of the failures file and the rollout file's rows without a reward, which NeMo Gym writes."""
    rows = columns.unmeasured
    task = np.concatenate([attempts.task, rows.task])
    repeat = np.concatenate([attempts.repeat, rows.repeat])
    kind = [*attempts.kind, *(rows.kind.names[code] for code in rows.kind.codes.tolist())]
    server = [*attempts.server, *("" for _ in range(len(rows.task)))]
    last = _last_of_each(task, repeat)
    measured = _among(task[last], repeat[last], columns.task, columns.repeat)
    lost = Counter(kind[index] for index in last[~measured].tolist())
    servers: dict[str, Counter[str]] = {}
    for name, server_name in zip(kind, server, strict=True):
        servers.setdefault(name, Counter())[server_name] += 1
    trials = len(np.union1d(task, columns.task))
    kinds = [
        FailureKindCount(
            kind=name,
            attempts=found.total(),
            lost=lost[name],
            share=_share(found.total(), len(kind) + len(columns), trials),
            servers=[server_name for server_name, _ in found.most_common() if server_name],
        )
        for name, found in sorted(servers.items(), key=lambda item: (-item[1].total(), item[0]))
    ]
    return Failures(attempts=len(kind), mended=int(measured.sum()), lost=int((~measured).sum()), kinds=kinds)


def _share(count: int, of: int, trials: int) -> Estimate:
    bounds = share_bounds(count / of, trials)
    return Estimate(mean=count / of, low=bounds[0] if bounds else None, high=bounds[1] if bounds else None)


def _last_of_each(task: Ints, repeat: Ints) -> Ints:
    """Return the index of each rollout's last attempt."""
    order = np.lexsort((np.arange(len(task)), repeat, task))
    follows = (np.diff(task[order], append=-1) != 0) | (np.diff(repeat[order], append=-1) != 0)
    last: Ints = order[follows]
    return last


def _among(task: Ints, repeat: Ints, tasks: Ints, repeats: Ints) -> NDArray[np.bool_]:
    """Return a mask of the (task, repeat) pairs that occur in (`tasks`, `repeats`)."""
    found = np.zeros(len(task), bool)
    if len(task) and len(tasks):
        all_tasks, all_repeats = np.concatenate([tasks, task]), np.concatenate([repeats, repeat])
        # Neither side has duplicates, so of two equal neighbours, the first is from `tasks` and the second from `task`.
        order = np.lexsort((np.arange(len(all_tasks)), all_repeats, all_tasks))
        follows = (np.diff(all_tasks[order]) == 0) & (np.diff(all_repeats[order]) == 0)
        found[order[1:][follows] - len(tasks)] = True
    return found
