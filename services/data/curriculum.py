"""curriculum: tasks in the order of how hard a policy finds them, from its rollouts."""

from __future__ import annotations

import numpy as np

from services.errors import OperatorError
from services.metrics.columns import Floats, Ints
from services.metrics.profile import Run


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
