"""Creates the loggers of a run from their names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TextIO

from rollyard.analysis.tracking.mlflow_tracker import MlflowTracker
from rollyard.analysis.tracking.wandb_tracker import WandbTracker
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.io.optional import require
from rollyard.records.io.terminal import unwrapped
from rollyard.records.types import Json
from rollyard.training.metrics.console_sinks import PrintSink, RichSink
from rollyard.training.metrics.metrics_sink import MetricsSink, RetriedSink
from rollyard.training.metrics.tracker_sink import TrackerSink

LOGGERS = ("rich", "print", "wandb", "mlflow")
NO_LOGGER = "none"
_TRACKERS: dict[str, tuple[str, type[WandbTracker] | type[MlflowTracker]]] = {
    "wandb": ("Weights & Biases", WandbTracker),
    "mlflow": ("MLflow", MlflowTracker),
}


def logger_names(loggers: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of a setting such as `rich,wandb`, `rich+print` or `[rich, wandb]`, each once; empty for `none`.

    Raises OperatorError if a name is unknown.
    """
    text = loggers if isinstance(loggers, str) else ",".join(loggers)
    names = tuple(dict.fromkeys(name for name in re.split(r"[\s,+]+", text.lower()) if name))
    for name in names:
        if name not in (*LOGGERS, NO_LOGGER):
            hint = did_you_mean(name, LOGGERS)
            raise OperatorError(f"unknown logger {name!r}{hint}; expected {', '.join(LOGGERS)} or {NO_LOGGER}")
    if NO_LOGGER in names and len(names) > 1:
        raise OperatorError(f"loggers: {NO_LOGGER} cannot be combined with others, found {', '.join(names)}")
    return () if names == (NO_LOGGER,) else names


def sinks_of(
    loggers: str | Iterable[str],
    *,
    name: str,
    config: Json,
    run_id: str,
    project: str = "rollyard",
    max_steps: int = 0,
    stream: TextIO | None = None,
) -> list[MetricsSink]:
    """Create the loggers of a run.

    `name`, `config` and `run_id` identify it to trackers, which continue a run that has the same id. `rich` and `print`
    write to `stream` (default: stdout); without a terminal, `rich` becomes `print`. `max_steps`: the number of the last
    step; 0 if it is unknown.

    Raises OperatorError if a name is unknown or its package is missing. A tracker that cannot be reached is a warning.
    """
    chosen = logger_names(loggers)
    out = sys.stdout if stream is None else stream
    if "rich" in chosen and not unwrapped(out).isatty():
        chosen = tuple(dict.fromkeys("print" if one == "rich" else one for one in chosen))
    for one in chosen:
        if one in _TRACKERS:
            require(one, one, f"the logger {one}")
    makers: dict[str, Callable[[], MetricsSink]] = {
        "rich": lambda: RichSink(out, max_steps),
        "print": lambda: PrintSink(out, max_steps),
        **{one: partial(_tracker, one, project, name, config, run_id) for one in _TRACKERS},
    }
    return [makers[one]() for one in chosen]


def _tracker(kind: str, project: str, name: str, config: Json, run_id: str) -> MetricsSink:
    title, tracker = _TRACKERS[kind]
    # In MLflow's file store, train/reward is a file, so that it cannot be the folder of train/reward/format as well.
    one_slash = kind == "mlflow"
    return RetriedSink(title, lambda: TrackerSink(tracker(project, name, config, run_id), one_slash=one_slash))
