"""Orders tasks by difficulty, as measured by a policy's rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rollyard.analysis.metrics.columns import Floats, Ints
from rollyard.analysis.metrics.profile import Run
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import iter_jsonl, skip
from rollyard.records.rows import id_of_row


def hardest_first(run: Run, k: int) -> list[int]:
    """Return task indices sorted by pass@k, then by solve rate, mean reward and index, hardest first.

    Tasks with fewer than k rollouts are omitted. Raises OperatorError if no task has k rollouts, or if it is undefined
    what counts as solved.
    """
    grouped = run.by_task
    if grouped is None or grouped.solved is None or grouped.solve_rate is None:
        raise OperatorError(
            f"cannot tell which rollouts in {run.profile.path} solved their task: pass rollouts that report success "
            "or have rewards in 0..1, or set --pass-threshold ..."
        )
    has_k = grouped.measured >= k
    if not has_k.any():
        max_rollouts = int(grouped.measured.max())
        raise OperatorError(f"{run.profile.path} has at most {max_rollouts} rollouts per task; pass@{k} needs {k}")
    rates = pass_at(k, grouped.measured[has_k], grouped.solved[has_k])
    task, rate, mean = grouped.task[has_k], grouped.solve_rate[has_k], grouped.mean[has_k]
    return [int(index) for index in task[np.lexsort([task, mean, rate, rates])]]


def pass_at(k: int, measured: Ints, solved: Ints) -> Floats:
    """Return each task's pass@k (see `estimators.passes`). Every task must have k rollouts."""
    n, c = measured.astype(float)[:, None], solved.astype(float)[:, None]
    step = np.arange(k)
    return np.asarray(1 - np.prod(np.maximum(n - c - step, 0) / (n - step), axis=1))


def ids_of(rollouts: Path) -> dict[int, str]:
    """Map the indices of tasks with an id to it. Raises OperatorError if the file cannot be read."""
    found: dict[int, str] = {}
    try:
        for line in iter_jsonl(rollouts, skip):  # skip incomplete last lines and rows that `load` has rejected
            index = line.value.get("_ng_task_index")
            if type(index) is not int or index in found:
                continue
            with suppress(ValueError):  # an id that does not fit in an order file is treated as absent
                if (own_id := id_of_row(line.value)) is not None:
                    found[index] = own_id
    except OSError as error:
        raise OperatorError(f"{rollouts} cannot be read: {error.strerror}") from error
    return found


def order_by_id(order: Sequence[int], ids_of_tasks: Mapping[int, str], ids: Sequence[str], rollouts: Path) -> list[str]:
    """Return the ids of the tasks, from the rollouts or else by position. Raises OperatorError for another dataset."""
    names = [ids_of_tasks.get(task, ids[task] if task < len(ids) else None) for task in order]
    known = set(ids)
    for task, name in zip(order, names, strict=True):
        if name not in known:
            found = "no matching row" if name is None else f"the id {name!r}"
            raise OperatorError(
                f"{rollouts} was collected on a different dataset: its task {task} has {found}, but this dataset has "
                f"{len(ids)} tasks ({', '.join(ids[:3])}, ...). Pass the dataset that was used for the collection"
            )
    return list(dict.fromkeys(filter(None, names)))
