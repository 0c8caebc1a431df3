"""curriculum: tasks in the order of how hard a policy finds them, from its rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rollyard.services.datasets.rows import id_of_row
from rollyard.services.errors import OperatorError
from rollyard.services.io.jsonl import iter_jsonl, skip
from rollyard.services.metrics.loader.columns import Floats, Ints
from rollyard.services.metrics.profile import Run


def hardest_first(run: Run, k: int) -> list[int]:
    """Task indices by pass@k, ties by solve rate, then by mean reward, then by index.

    Tasks with fewer than k rollouts, or with none, are left out. Raises OperatorError where nothing is left or nothing
    says what solved is.
    """
    grouped = run.by_task
    if grouped is None or grouped.solved is None or grouped.solve_rate is None:
        raise OperatorError(
            f"{run.profile.path} does not say which rollouts solved which task: give rollouts with success, rewards in "
            "0..1, or +pass_threshold=..."
        )
    enough = grouped.measured >= k
    if not enough.any():
        most = int(grouped.measured.max())
        raise OperatorError(f"{run.profile.path} has at most {most} rollouts of a task; pass@{k} needs {k}")
    rates = pass_at(k, grouped.measured[enough], grouped.solved[enough])
    task, rate, mean = grouped.task[enough], grouped.solve_rate[enough], grouped.mean[enough]
    return [int(index) for index in task[np.lexsort([task, mean, rate, rates])]]


def pass_at(k: int, measured: Ints, solved: Ints) -> Floats:
    """pass@k of each task: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374, equation 1); n >= k."""
    n, c = measured.astype(float)[:, None], solved.astype(float)[:, None]
    step = np.arange(k)
    return np.asarray(1 - np.prod(np.maximum(n - c - step, 0) / (n - step), axis=1))


def ids_of(rollouts: Path) -> dict[int, str]:
    """Task index -> the id that its rollouts carry; tasks without one are left out. Raises OperatorError."""
    found: dict[int, str] = {}
    try:
        for line in iter_jsonl(rollouts, skip):  # a torn tail, and what `load` has refused
            index = line.value.get("_ng_task_index")
            if type(index) is not int or index in found:
                continue
            with suppress(ValueError):  # an id that no order file could hold is none
                if (own := id_of_row(line.value)) is not None:
                    found[index] = own
    except OSError as error:
        raise OperatorError(f"{rollouts} cannot be read: {error.strerror}") from error
    return found


def named(order: Sequence[int], told: Mapping[int, str], ids: Sequence[str], rollouts: Path) -> list[str]:
    """The tasks of an order by id: as their rollouts name them, else as the data have them in that place.

    Raises OperatorError where the rollouts are of other data.
    """
    names = [told.get(task, ids[task] if task < len(ids) else None) for task in order]
    known = set(ids)
    for task, name in zip(order, names, strict=True):
        if name not in known:
            what = "more" if name is None else f"the id {name!r}"
            raise OperatorError(
                f"{rollouts} was collected on other data: its task {task} has {what}, these data have {len(ids)} tasks "
                f"({', '.join(ids[:3])}, ...). Give the data of the collection"
            )
    return list(dict.fromkeys(filter(None, names)))
