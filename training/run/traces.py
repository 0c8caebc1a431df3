"""Traces: how long each stage of a step took, and what became of each task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from rollyard.records.errors import RunError
from rollyard.records.types import Json
from rollyard.training.batch import Batch
from rollyard.training.groups.advantages import Group
from rollyard.training.update import Update


class Traces:
    """Appends to `trace.jsonl` and `samples.jsonl`. A killed run leaves the steps after its last checkpoint in them;
    `start` tells them from their repetition.
    """

    def __init__(self, folder: Path, start: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._trace = folder / "trace.jsonl"
        self._samples = folder / "samples.jsonl"
        self._start = start
        self._began = time.monotonic()
        self._append(self._trace, [{"type": "meta", "name": "start", "ts": 0.0, "time": time.time()}])

    @contextmanager
    def span(self, name: str, step: int) -> Iterator[None]:
        """Record the duration of the block in seconds, and whether it failed."""
        began = time.monotonic()
        failure = None
        try:
            yield
        except BaseException as error:
            failure = type(error).__name__
            raise
        finally:
            self.record(name, step, began, failure)

    def record(self, name: str, step: int, began: float, failure: str | None = None) -> None:
        """Record a stage that began at `began`, by the monotonic clock, and ends now."""
        entry: Json = {"type": "span", "name": name, "step": step, "ts": round(began - self._began, 6)}
        entry["dur"] = round(time.monotonic() - began, 6)
        self._append(self._trace, [entry | ({"failed": failure} if failure else {})])

    def trained(self, batch: Batch, update: Update) -> None:
        """Record what became of each group of a batch once the update is complete, and of each failed rollout."""
        used = {id(sequence) for sequence in update.sequences}
        entries = []
        for group in batch.groups:
            entries += [_entry_of_group(group, used, batch.step), *_entries_of_failures(group, batch.step)]
        self._append(self._samples, entries)

    def _append(self, path: Path, entries: list[Json]) -> None:
        lines = [orjson.dumps({"start": self._start, **entry}) + b"\n" for entry in entries]
        try:
            with path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error


def _entry_of_group(group: Group, used: set[int], step: int) -> Json:
    entry: Json = {"event": "skipped" if group.skipped else "used", "step": step, "task_key": group.task_key}
    if group.skipped:
        entry["reason"] = group.skipped
    chosen = [sequence for member in group.members for sequence in member.sequences if id(sequence) in used]
    versions = {version for sequence in chosen for version in sequence.versions if version is not None}
    return entry | {
        "members": len(group.members),
        "rewards": [member.reward for member in group.members if member.counts],
        "sequences": len(chosen),
        "loss_tokens": sum(sequence.loss_tokens for sequence in chosen),
        "versions": sorted(versions),
    }


def _entries_of_failures(group: Group, step: int) -> list[Json]:
    return [
        {
            "event": "failed",
            "step": step,
            "task_key": group.task_key,
            "repeat": member.repeat,
            "reason": member.ending,
            "treatment": str(member.treatment),
        }
        for member in group.members
        if not member.sequences
    ]
