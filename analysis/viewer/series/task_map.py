"""The cells of the heat map of tasks by steps."""

from __future__ import annotations

import numpy as np

from rollyard.analysis.metrics.loader.columns import Floats
from rollyard.analysis.metrics.paired.metric import SOLVE_RATE
from rollyard.analysis.metrics.training.task_series import TaskSeries, ends
from rollyard.analysis.viewer.series.series_records import MapCell, MapRow


def map_row(series: TaskSeries, values: Floats, row: int) -> MapRow:
    """Return the cells of a task; `values` are those of all tasks."""
    cells = [
        None
        if np.isnan(value)
        else MapCell(task=int(series.task[row, column]), value=value, rollouts=int(series.measured[row, column]))
        for column, value in enumerate(values[row].tolist())
    ]
    first, last = ends(values[row : row + 1])
    change = float(last[0] - first[0])
    return MapRow(task=int(series.label[row]), cells=cells, change=None if np.isnan(change) else change)


def value_range(value: str, values: Floats) -> tuple[float, float]:
    """Return the range of the colours: 0 to 1 for solve rates, the lowest to the highest mean reward."""
    if value == SOLVE_RATE or np.isnan(values).all():
        return 0.0, 1.0
    return float(np.nanmin(values)), float(np.nanmax(values))
