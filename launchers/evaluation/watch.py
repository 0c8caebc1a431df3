"""Evaluates each checkpoint of a training run once, in a folder of its own, and keeps one table over their steps."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Event

from pydantic import TypeAdapter, ValidationError

from rollyard.launchers.evaluation.checkpoints import CheckpointWatch, LocalSource, S3Source, Source, step_of
from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_state import (
    FINAL,
    ControlRequests,
    EvalFolder,
    EvalObserver,
    EvalState,
    EvalTracker,
    locked,
    new_state,
    read_state,
)
from rollyard.launchers.evaluation.headline import (
    Headline,
    formatted,
    headline,
    markdown_table,
    metric_columns,
    metric_names,
    metric_numbers,
)
from rollyard.launchers.evaluation.plan import ENGINE, read_identity, refuse_differences
from rollyard.records.errors import OperatorError, RollyardError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_keys import Shard
from rollyard.records.types import Json, Record
from rollyard.services.backoff import Backoff

Evaluate = Callable[[EvalConfig], None]
"""Runs an evaluation to its end. Raises OperatorError or RunError if it does not complete, which the table records."""


@dataclass(frozen=True)
class EvalWatch:
    config: EvalConfig
    """The evaluation of each checkpoint, without `model`; `output_dir` holds the table and a folder for each."""
    source: Source
    evaluate: Evaluate
    poll_s: float
    print_line: Callable[[str], None]

    @cached_property
    def table(self) -> CheckpointTable:
        return CheckpointTable(self.config.output_dir)

    def run(self, stopped: Event, *, once: bool) -> None:
        """Evaluate checkpoints until `stopped` is set; with `once`, the existing ones."""
        watch = CheckpointWatch(
            self.source,
            self.config.output_dir / ".staged",
            lambda name: self.table.is_pending(name, self.poll_s),
            self._run_one,
            self.print_line,
        )
        watch.run(self.poll_s, stopped, once=once)

    @property
    def is_complete(self) -> bool:
        return all(row.headline is not None for row in self.table.rows)

    def _run_one(self, name: str, folder: Path) -> None:
        output = self.config.output_dir / name
        self.print_line(f"evaluating {name} in {output}")
        config = self.config.model_copy(update={"model": f"vllm/{folder.resolve()}", "output_dir": output})
        try:
            self.evaluate(config)
            found = headline(EvalFolder(output).rollouts.output)
            if not found.is_complete:
                raise RunError(f"{found.coverage} rollouts are measured")
        except (OperatorError, RunError) as error:  # the config was checked before the watch began
            self.table.record(name, None, str(error))
            self.print_line(f"{name} failed and will be tried again: {error}")
            return
        self.table.record(name, found)
        self.print_line(self.table.markdown())


def open_source(address: str, copies: Path, pattern: str, marker: str | None) -> Source:
    """Return the source of checkpoints at a local folder or an S3 URL. `copies` receives those of S3, one at a time."""
    if "/" in pattern:
        raise OperatorError(f"watch_pattern is {pattern!r}; expected a name pattern without /, such as step_*")
    if address.startswith("s3://"):
        return S3Source(address, copies, pattern, marker)
    return LocalSource(Path(address), pattern, marker)


POLL_S = 0.5


class WatchControl:
    """A watch holds the lock of its folder, and shares its requests with its evaluations, which run one at a time."""

    def __init__(self, folder: EvalFolder, tracker: EvalTracker, requests: ControlRequests) -> None:
        self.requests = requests
        self.stopped = Event()
        self._folder = folder
        self._tracker = tracker
        self._current: tuple[str, EvalFolder] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls, output_dir: Path, here: Path, observer: EvalObserver, on_start: Callable[[WatchControl, EvalState], None]
    ) -> AsyncIterator[WatchControl]:
        """Lock the folder of a watch and make it controllable. Raises RunError if another one is running in it."""
        folder, requests = EvalFolder(output_dir), ControlRequests()
        with locked(folder):
            state = new_state(secrets.token_hex(4), folder.root, None, 1)
            tracker = EvalTracker(state, folder.state, observer)
            control = cls(folder, tracker, requests)
            async with requests.follow(folder, state, here):
                tracker.update(stage="watch")
                on_start(control, tracker.state)
                following = asyncio.create_task(control._follow())
                message = ""
                try:
                    yield control
                except RollyardError as error:
                    message = str(error).partition("\n")[0]
                    raise
                finally:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    ended = "failed" if message else requests.ending or "complete"
                    tracker.update(state=ended, stage="done", address=None, message=message)

    def evaluates(self, config: EvalConfig) -> None:
        self._current = config.output_dir.name, EvalFolder(config.output_dir, Shard.parse(config.shard))

    async def _follow(self) -> None:
        while True:
            if self.requests.ending:
                self.stopped.set()
            self._tracker.update(**self._state())
            await asyncio.sleep(POLL_S)

    def _state(self) -> dict[str, object]:
        name, folder = self._current or ("", self._folder)
        found = read_state(folder.state) if name else None
        if found is None or found.state in FINAL:
            state = "draining" if self.requests.ending else "paused" if self.requests.paused else "running"
            return {"state": state, "stage": "watch", "message": "", "address": None}
        names = ("attempt", "max_attempts", "message", "address", "measured", "expected", "failed")
        counts = {one: getattr(found, one) for one in names}
        return {"state": found.state, "stage": f"{name}: {found.stage}", **counts}


_COMMON = (
    *("environments", "config_paths", "overrides", "agent_name", "input_jsonl_fpath", "data", "limit", "num_repeats"),
    *("num_repeats_add_seed", "responses_create_params", "pass_threshold"),
)
"""Settings that change the rows, the agents or the figures of a table."""


IDENTITY = "watch_identity.json"


def identity_of_watch(config: EvalConfig, address: str) -> Json:
    """Return what must not change while a table grows. `address`: the path or S3 URL of the checkpoints."""
    settings = config.model_dump(mode="json")
    engine = {name: settings["vllm"][name] for name in ENGINE}
    return {"watch": address, **{name: settings[name] for name in _COMMON}, "vllm": engine}


def check_watch_identity(folder: Path, identity: Json) -> None:
    """Raise OperatorError if `folder` holds the table of a different watch. Changes nothing."""
    if before := read_identity(folder / IDENTITY):
        other = f"{folder} belongs to a watch of other checkpoints, or with other parameters"
        refuse_differences(before, identity, other)


_LONGEST_PAUSE_S = 3600.0


class EvaluatedCheckpoint(Record):
    checkpoint: str
    step: int | None
    headline: Headline | None
    """None until the evaluation is complete."""
    tries: int = 0
    error: str = ""
    failed_at: float = 0.0


_ROWS = TypeAdapter(list[EvaluatedCheckpoint])


class CheckpointTable:
    """The table in `folder`: checkpoints.json, which is replaced atomically, and checkpoints.md and .csv made from it.

    Only a complete evaluation is recorded as done. A failure is kept with its reason and tried again.
    """

    def __init__(self, folder: Path) -> None:
        """Read the table. Raises RunError if checkpoints.json is not readable."""
        self.path = folder / "checkpoints.json"
        self._rows: dict[str, EvaluatedCheckpoint] = {}
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._rows = {row.checkpoint: row for row in _ROWS.validate_json(self.path.read_bytes())}
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            raise RunError(f"{self.path} cannot be read ({error}); rename or delete it to start over") from error

    @property
    def rows(self) -> list[EvaluatedCheckpoint]:
        """All checkpoints by step, then by name; those without a step come first."""
        return sorted(self._rows.values(), key=lambda row: (-1 if row.step is None else row.step, row.checkpoint))

    def is_pending(self, checkpoint: str, pause_s: float) -> bool:
        """Return whether to evaluate it now. After each failure the pause doubles, up to an hour."""
        row = self._rows.get(checkpoint)
        if row is None or row.headline is not None:
            return row is None
        return time.time() >= row.failed_at + Backoff(pause_s, _LONGEST_PAUSE_S).pause_s(row.tries)

    def record(self, checkpoint: str, headline: Headline | None, error: str = "") -> None:
        """Store the result of a try, or why it failed."""
        tries = self._rows[checkpoint].tries + 1 if checkpoint in self._rows else 1
        failed_at = {"failed_at": time.time()} if headline is None else {}
        self._rows[checkpoint] = EvaluatedCheckpoint(
            checkpoint=checkpoint, step=step_of(checkpoint), headline=headline, tries=tries, error=error, **failed_at
        )
        replace(self.path, _ROWS.dump_json(self.rows, indent=2))
        replace(self.path.with_suffix(".md"), self.markdown().encode())
        text = io.StringIO()
        writer, metrics = csv.writer(text, lineterminator="\n"), self._metrics()
        writer.writerow(["step", "checkpoint", "measured", "expected", *metric_columns(metrics)])
        for row in self.rows:
            if (found := row.headline) is not None:
                numbers = metric_numbers(found, metrics)
                writer.writerow([row.step, row.checkpoint, found.measured, found.expected, *numbers])
        replace(self.path.with_suffix(".csv"), text.getvalue().encode())

    def markdown(self) -> str:
        metrics = self._metrics()
        cells = [["step", "checkpoint", "rollouts", *metrics]]
        for row in self.rows:
            found = [formatted(row.headline.metrics.get(name) if row.headline else None) for name in metrics]
            state = row.headline.coverage if row.headline else f"failed {row.tries} times: {row.error}"
            cells.append(["-" if row.step is None else str(row.step), row.checkpoint, state, *found])
        return markdown_table(cells)

    def _metrics(self) -> list[str]:
        return metric_names(row.headline for row in self.rows if row.headline)
