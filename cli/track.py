"""ng_track: logs a finished or growing rollout file to Weights & Biases or MLflow."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import orjson
from pydantic import Field

from rollyard.analysis.tracking import (
    COLUMNS,
    MlflowTracker,
    ProgressFile,
    RolloutMetrics,
    RolloutSample,
    Tracker,
    WandbTracker,
    rows,
)
from rollyard.cli.options import Options, read_options, rollout_files, run_command
from rollyard.records.errors import OperatorError
from rollyard.records.rollout_file import RolloutPaths, read_status
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.types import Json

EXAMPLE = "ng_track results/rollouts.jsonl --to wandb --project sokoban"
TRACKERS: dict[str, type[WandbTracker] | type[MlflowTracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}
LIVE_S = 30.0
"""Maximum time between log steps while a file grows slowly, in seconds."""


class TrackOptions(Options):
    SUBJECT: ClassVar[str] = "jsonl_fpath"

    jsonl_fpath: Path
    """The rollout file. X_manifest.json and X_status.json next to it identify the run and its state."""
    to: Literal["wandb", "mlflow"]
    """The tracker. Set its key and URL as usual: WANDB_API_KEY, MLFLOW_TRACKING_URI, ..."""
    project: str = "rollyard"
    """Name of the Weights & Biases project or the MLflow experiment."""
    name: str | None = None
    """Name of the run; default: the file's name. The same rollouts under a different name are a separate run."""
    every: int = Field(default=50, ge=1)
    """Number of rollouts per logged step."""
    samples: int = Field(default=50, ge=0)
    """Number of rollouts in the logged table, sampled uniformly from the entire file."""
    follow: bool = True
    """Keep logging while the file's collection is running."""


def main() -> None:
    run_command("ng_track", TrackOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Log a rollout file's metrics and a sample of its rollouts to a tracker. The exit status is 1 if it has none."""
    options, _ = read_options(TrackOptions, arguments)
    (output,) = rollout_files([options.jsonl_fpath])
    options = options.model_copy(update={"jsonl_fpath": output})
    if not output.is_file():
        raise OperatorError(f"the rollout file {str(output)!r} does not exist; pass an output of ng_collect_rollouts")
    name = options.name or output.stem
    manifest = _manifest(output)
    run_id = _run_id(output, manifest, options.project, name)
    progress_file = ProgressFile(output, options.to, run_id)
    identity = manifest.get("identity")
    config = {**(identity if isinstance(identity, dict) else {}), "versions": manifest.get("versions")}
    tracker = TRACKERS[options.to](options.project, name, config if manifest else {}, run_id)
    before = max(tracker.logged, progress_file.logged)
    print(f"{output} -> {tracker.place}", flush=True)
    if before:
        source = "" if tracker.logged else f" (according to {progress_file.path.name})"
        print(f"resuming its run, which already has the first {before} rollouts{source}", flush=True)
    measured, complete = 0, False
    try:
        measured = _track(options, tracker, progress_file, before)
        complete = True
    finally:
        tracker.close(failed=not complete)
    print(f"{measured} rollouts tracked, {max(measured - before, 0)} of them new: {tracker.place}")
    return EXIT_DONE if measured else EXIT_FAILED


def _track(options: TrackOptions, tracker: Tracker, progress_file: ProgressFile, before: int) -> int:
    """Log all rollouts after the first `before`, and return the number of measured rollouts in the file.

    The tracked run already has the first ones, but they are read again to compute its means.
    """
    metrics, sample = RolloutMetrics(), RolloutSample(options.samples)
    logged, logged_at = before, time.monotonic()

    def log(*, exact: bool = False) -> None:
        nonlocal logged, logged_at
        if metrics.measured <= logged:
            return
        status = read_status(options.jsonl_fpath)
        tracker.log(metrics.metrics(status.failures if status else {}, exact=exact), metrics.measured)
        logged, logged_at = metrics.measured, time.monotonic()
        progress_file.write(logged)

    for row in rows(options.jsonl_fpath, follow=options.follow):
        if row is None:
            if time.monotonic() > logged_at + LIVE_S:
                log()
        elif metrics.add(row):
            sample.offer(row)
            if metrics.measured % options.every == 0:
                log()
    log(exact=True)
    if metrics.measured > before and options.samples:
        tracker.table(COLUMNS, sample.rows, metrics.measured)
    return metrics.measured


def _run_id(output: Path, manifest: Json, project: str, name: str) -> str:
    """Return a run id that stays the same for these rollouts and this name while the file grows.

    It is derived from the collection's manifest, or from the first line of a file without one.
    """
    origin: object = [manifest.get("identity"), manifest.get("created")]
    if not manifest:
        with output.open("rb") as file:
            origin = hashlib.sha256(file.readline()).hexdigest()
    key = orjson.dumps([origin, project, name], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(key).hexdigest()[:16]


def _manifest(output: Path) -> Json:
    """Return the contents of `X_manifest.json`; empty if it cannot be read."""
    try:
        manifest = orjson.loads(RolloutPaths(output).manifest.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
