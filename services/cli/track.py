"""ng_track: a rollout file, finished or growing, to Weights & Biases or MLflow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import orjson
from pydantic import Field

from services.cli.options import EXIT_DONE, EXIT_FAILED, Options, read_options, run_command
from services.errors import OperatorError
from services.store import StorePaths
from services.tracking.figures import Figures
from services.tracking.following import rows, status_of
from services.tracking.mlflow_tracker import MlflowTracker
from services.tracking.sample import COLUMNS, Sample
from services.tracking.tracker import Tracker
from services.tracking.wandb_tracker import WandbTracker
from services.types import Json

EXAMPLE = "ng_track +jsonl_fpath=results/rollouts.jsonl +to=wandb +project=sokoban"
TRACKERS: dict[str, type[WandbTracker] | type[MlflowTracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}
LIVE_S = 30.0
"""While it grows slowly, what is new is logged as often."""


class TrackOptions(Options):
    """Options of ng_track."""

    jsonl_fpath: Path
    """The rollout file; X_manifest.json and X_status.json beside it say what it is and whether it still grows."""
    to: Literal["wandb", "mlflow"]
    """Whom to tell. Keys and addresses are those of its own settings: WANDB_API_KEY, MLFLOW_TRACKING_URI, ..."""
    project: str = "rollyard"
    """Project of Weights & Biases, experiment of MLflow."""
    name: str | None = None
    """Of the run; default: the file's name."""
    every: int = Field(default=50, ge=1)
    """Rollouts from one point of the curves to the next."""
    samples: int = Field(default=50, ge=0)
    """Rollouts in the table, drawn evenly from the whole file."""
    follow: bool = True
    """Go on while the file's collection runs."""


def main() -> None:
    """Entry point."""
    run_command("ng_track", TrackOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Log a rollout file's numbers over its rollouts, and a table of some of them; exit status 1 without any."""
    options, _ = read_options(TrackOptions, arguments)
    output = options.jsonl_fpath
    if not output.is_file():
        raise OperatorError(f"there is no rollout file {str(output)!r}; give the output of ng_collect_rollouts")
    tracker = TRACKERS[options.to](options.project, options.name or output.stem, _config(output))
    print(f"{output} -> {tracker.place}", flush=True)
    measured, whole = 0, False
    try:
        measured = _track(options, tracker)
        whole = True
    finally:
        tracker.close(failed=not whole)
    print(f"{measured} rollouts tracked: {tracker.place}")
    return EXIT_DONE if measured else EXIT_FAILED


def _track(options: TrackOptions, tracker: Tracker) -> int:
    figures, sample = Figures(), Sample(options.samples)
    logged, logged_at = 0, time.monotonic()

    def log() -> None:
        nonlocal logged, logged_at
        status = status_of(options.jsonl_fpath)
        tracker.log(figures.metrics(status.failures if status else {}), figures.measured)
        logged, logged_at = figures.measured, time.monotonic()

    for row in rows(options.jsonl_fpath, follow=options.follow):
        if row is None:
            if figures.measured > logged and time.monotonic() > logged_at + LIVE_S:
                log()
        elif figures.add(row):
            sample.offer(row)
            if figures.measured % options.every == 0:
                log()
    if figures.measured > logged:
        log()
    if figures.measured and options.samples:
        tracker.table(COLUMNS, sample.rows)
    return figures.measured


def _config(output: Path) -> Json:
    """What makes the collection itself."""
    try:
        manifest = orjson.loads(StorePaths(output).manifest.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    if not isinstance(manifest, dict):
        return {}
    identity = manifest.get("identity")
    return {**(identity if isinstance(identity, dict) else {}), "versions": manifest.get("versions")}


if __name__ == "__main__":
    main()
