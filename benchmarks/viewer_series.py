"""A series of steps in ng_viewer: CPU time until all files are read, and of the routes of its page."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import orjson

from benchmarks.profile import Case, rollouts
from rollyard.analysis.metrics.run_pair import TaskChanges
from rollyard.analysis.metrics.training_steps import StepSummary, TaskSeries
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.series import StepReader, files_as_series

STEPS = 10


def measure_series(rows: int, folder: Path) -> list[object]:
    """Read `rows` rollouts in 10 files, and return the row of a table."""
    files = []
    for step in range(STEPS):
        path = folder / f"step_{step}.jsonl"
        with path.open("wb") as file:
            lines = rollouts(Case("", rows // STEPS, False, 0.0, 0.0))
            file.writelines(_of_step(line, step) for line in lines)
        files.append((path.stem, path))
    [steps] = files_as_series(files, range(STEPS))().values()
    reader = StepReader()
    reader.progress(steps)
    read_s = _cpu_s(reader.wait)
    summaries: list[StepSummary] = list(reader.progress(steps).summaries.values())
    pair_s = _cpu_s(lambda: TaskSeries.of(summaries).order("change", TaskSeries.of(summaries).mean))
    index = FileIndex(files)
    index.read_through()
    runs = [index.find(number).numbers()[1] for number in (0, STEPS - 1)]
    change_s = _cpu_s(lambda: TaskChanges.of(*runs))
    for left in folder.iterdir():
        left.unlink()
    return [f"{rows:,} rollouts, {STEPS} steps", read_s, 1000 * pair_s, 1000 * change_s]


def _of_step(line: bytes, step: int) -> bytes:
    """Return the row with a content key, and solved more often at later steps."""
    row = orjson.loads(line)
    task, repeat = row["_ng_task_index"], row["_ng_rollout_index"]
    more = {"_ng_task_key": f"{task + 1:016x}", "success": (7 * task + 3 * repeat + task * step) % 11 < 3 + step // 2}
    return orjson.dumps({**row, **more}) + b"\n"


def _cpu_s(make: Callable[[], object]) -> float:
    started = time.process_time()
    make()
    return time.process_time() - started
