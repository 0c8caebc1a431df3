"""MetricsLog: metrics.jsonl, and the sinks that get the same metrics."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Protocol, TextIO

import orjson
from rich.columns import Columns
from rich.console import Console, Group
from rich.rule import Rule
from rich.text import Text

from rollyard.records.errors import OperatorError, RunError, did_you_mean
from rollyard.records.jsonl import Lines, iter_jsonl, replace, skip
from rollyard.records.optional import require
from rollyard.records.terminal import duration, plain_line, unwrapped
from rollyard.records.types import Json

log = logging.getLogger(__name__)


class MetricsLog:
    """Appends a line per call to metrics.jsonl: `{"step": 12, "time": 1.7e9, "train/reward": 0.5, ...}`.

    Lines of the same step belong together; where they share a name, the later one counts. Numbers that are not finite
    become null, because JSON has no others.
    """

    def __init__(self, path: Path, sinks: Sequence[MetricsSink] = ()) -> None:
        self._path = path
        self._sinks = list(sinks)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line, then pass the metrics to the sinks. A sink that fails is dropped with a warning.

        Raises RunError if the file cannot be written.
        """
        numbers = {name: value if isinstance(value, int) else float(value) for name, value in metrics.items()}
        self._append(orjson.dumps({"step": step, "time": round(time.time(), 3), **numbers}) + b"\n")
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        for sink in list(self._sinks):
            try:
                sink.log(step, finite)
            except Exception as error:
                self._sinks.remove(sink)
                log.warning("%s failed at step %d and gets no more metrics: %r", type(sink).__name__, step, error)

    def drop_after(self, step: int) -> None:
        """Remove the lines of later steps, and a last line that a killed process did not finish.

        Raises RunError if the file cannot be written.
        """
        if not self._path.exists():
            return
        before = self._path.read_bytes()
        lines = iter_jsonl(Lines(self._path, whole=True), skip)
        kept = b"".join(
            line.line for line in lines if isinstance(found := line.value.get("step"), int) and found <= step
        )
        if kept != before:
            replace(self._path, kept)

    def close(self, failed: bool = False) -> None:
        for sink in self._sinks:
            try:
                sink.close(failed=failed)
            except Exception as error:
                log.warning("%s could not be closed: %r", type(sink).__name__, error)
        self._sinks = []

    def _append(self, line: bytes) -> None:
        """Write the line with one system call, so that readers do not see half of it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+", buffering=0) as file:
                _drop_unfinished_line(file)
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}") from error


def _drop_unfinished_line(file: FileIO) -> None:
    """Cut off a last line without a line ending, which a killed process or a full disk left."""
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        file.seek(0)
        file.truncate(file.readall().rfind(b"\n") + 1)


_MAX_WAITING = 1_000
_MAX_PAUSE = 64


class MetricsSink(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics. A step may come twice: with its training metrics, and later with those of its evaluation."""

    def close(self, *, failed: bool) -> None:
        """End the run; `failed` tells how it ended."""


class MetricsTracker(Protocol):
    """A run in an experiment tracker, which continues one with the same id."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self, *, failed: bool) -> None: ...


MakeTracker = Callable[[str, str, Json, str], MetricsTracker]
"""Starts a run of a project: its names, its config and its id."""


class RetriedSink:
    """A run in a tracker, on another machine. While it fails, training goes on, its metrics wait, and one warning is
    logged.

    The next attempts follow after 1, 2, 4, ... and at most 64 further calls, because each may take minutes. After
    training resumed from a checkpoint, steps come again. MLflow keeps both values of such a step; Weights & Biases
    ignores steps before the last one that it has.
    """

    def __init__(self, name: str, start: Callable[[], MetricsTracker], *, one_slash: bool = False) -> None:
        """`one_slash`: replace further slashes in names by dots, as in train/reward.format. Raises OperatorError if
        `start` does.
        """
        self._name = name
        self._start = start
        self._one_slash = one_slash
        self._tracker: MetricsTracker | None = None
        self._waiting: list[tuple[dict[str, float], int]] = []
        self._calls_left = 0
        self._pause = 1
        self._has_warned = False
        self._try()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        named = {_one_slash(name) if self._one_slash else name: value for name, value in metrics.items()}
        self._waiting = [*self._waiting[1 - _MAX_WAITING :], (named, step)]
        if self._calls_left:
            self._calls_left -= 1
        else:
            self._try()

    def close(self, *, failed: bool) -> None:
        self._try()
        if self._tracker is not None:
            try:
                self._tracker.close(failed=failed)
            except Exception as error:
                self._warn(error)
        if self._waiting:
            log.warning(
                "%s did not get the metrics from step %d on; metrics.jsonl has them", self._name, self._waiting[0][1]
            )

    def _try(self) -> None:
        try:
            self._tracker = self._tracker or self._start()
            while self._waiting:
                self._tracker.log(*self._waiting[0])
                self._waiting.pop(0)
            self._pause = 1
        except OperatorError:
            raise
        except Exception as error:
            self._warn(error)
            self._calls_left, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s failed and will be tried again: %r. Training goes on with metrics.jsonl", self._name, error)


LOGGERS = ("rich", "print", "wandb", "mlflow")
NO_LOGGER = "none"
_TRACKERS = {"wandb": "Weights & Biases", "mlflow": "MLflow"}


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
    trackers: Mapping[str, MakeTracker],
    project: str = "rollyard",
    max_steps: int = 0,
    stream: TextIO | None = None,
) -> list[MetricsSink]:
    """Create the loggers of a run.

    `name`, `config` and `run_id` identify it to trackers, which continue a run that has the same id; `trackers` starts
    their runs. `rich` and `print` write to `stream` (default: stdout); without a terminal, `rich` becomes `print`.
    `max_steps`: the number of the last step; 0 if it is unknown.

    Raises OperatorError if a name is unknown or its package is missing. A tracker that cannot be reached is a warning.
    """
    chosen = logger_names(loggers)
    out = sys.stdout if stream is None else stream
    if "rich" in chosen and not unwrapped(out).isatty():
        chosen = tuple(dict.fromkeys("print" if one == "rich" else one for one in chosen))
    for one in chosen:
        if one in _TRACKERS:
            require(one, one, f"the logger {one}")
    sinks: list[MetricsSink] = []
    for one in chosen:
        if one in _TRACKERS:
            start = partial(trackers[one], project, name, config, run_id)
            # In MLflow's file store, train/reward is a file, so that it cannot be the folder of train/reward/format.
            sinks.append(RetriedSink(_TRACKERS[one], start, one_slash=one == "mlflow"))
        else:
            sinks.append((RichSink if one == "rich" else PrintSink)(out, max_steps))
    return sinks


def _one_slash(name: str) -> str:
    first, slash, rest = name.partition("/")
    return f"{first}{slash}{rest.replace('/', '.')}"


_LINE = (
    *("train/reward", "train/correct_rate", "train/parse_err_rate"),
    *("train/avg_completion_length", "train/total_completion_tokens"),
    *("train/loss", "train/kl", "train/kl_initial", "train/ratio_max", "train/clip_rate", "train/entropy"),
    "train/grad_norm",
    *("train/skipped_groups", "train/failed_rollouts", "train/policy_lag", "perf/step_s", "perf/rollout_wait_s"),
)
"""What a line shows."""


class PrintSink:
    """Prints a line per step, without colours. Implements `MetricsSink`."""

    def __init__(self, stream: TextIO, max_steps: int = 0) -> None:
        """`max_steps`: the number of the last step; 0 if it is unknown."""
        self._stream = stream
        self._max_steps = max_steps

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        names = [name for name in _LINE if name in metrics]
        names += [name for name in metrics if name.startswith("eval/")]
        parts = [f"{name} {value}" for name, value in _shown(names, metrics)]
        print("  ".join([step_title(step, self._max_steps), *parts]), file=self._stream, flush=True)

    def close(self, *, failed: bool) -> None:
        pass


class RichSink:
    """Prints a block per step with all metrics side by side. Implements `MetricsSink`."""

    def __init__(self, stream: TextIO, max_steps: int = 0) -> None:
        """`stream` must be a terminal."""
        # Names are escaped by short_name, so that the stream does not need to escape Rich's own output.
        self._console = Console(file=unwrapped(stream), highlight=False)
        self._max_steps = max_steps

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        figures = [Text.assemble((name, "dim"), " ", value) for name, value in _shown(metrics, metrics)]
        title = Text(step_title(step, self._max_steps), "bold")
        self._console.print(Group(Rule(title, align="left"), Columns(figures, padding=(0, 4))))

    def close(self, *, failed: bool) -> None:
        pass


def step_title(step: int, max_steps: int) -> str:
    """Return `step 3/20`; without `max_steps`, `step 3`."""
    return f"step {step}/{max_steps}" if max_steps else f"step {step}"


def _shown(names: Iterable[str], metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield names and values as text, without what is 0 unless something goes wrong, and is."""
    for name in names:
        if metrics[name] or name not in NORMALLY_ZERO:
            yield short_name(name), value_text(name, metrics[name])


_SHARES = (
    *("train/correct_rate", "train/parse_err_rate", "train/clip_rate", "train/zero_variance_rate", "train/stale_rate"),
    *("train/seq_too_long_rate", "train/ending/"),
)
NORMALLY_ZERO = (
    *("train/skipped_groups", "train/zero_variance_rate", "train/failed_rollouts", "train/seq_too_long_rate"),
    *("train/stale_rate", "train/staleness_mean", "train/policy_lag", "eval/failed_rollouts"),
)
"""Not shown in the terminal while they are 0."""


def value_text(name: str, value: float) -> str:
    """Format a metric's value: `38.2%`, `12 s`, `1,024` or `0.01234`."""
    if name.startswith(_SHARES) or (name.startswith("eval/") and name.endswith(("_rate", "/accuracy"))):
        return f"{value:.1%}"
    if name.endswith("_s") and not name.endswith("per_s"):
        return duration(value)
    if name.startswith("train/ratio_"):
        return f"{value:.6g}"  # differences from 1 matter
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def short_name(name: str) -> str:
    """Return the name of a metric without its prefix: `reward` for `train/reward`. Other prefixes than train and perf
    stay.
    """
    return plain_line(name.removeprefix("train/").removeprefix("perf/"))
