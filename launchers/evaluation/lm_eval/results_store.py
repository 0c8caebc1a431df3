"""Stores the scores of evaluated checkpoints. An evaluation that is killed is not stored, so it is repeated."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from rollyard.launchers.evaluation.lm_eval.benchmarks import Benchmark
from rollyard.launchers.evaluation.lm_eval.lm_eval_results import Score, as_csv, as_json, as_markdown
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.types import Record

MAX_ATTEMPTS = 3


class Entry(Record):
    """The result of evaluating one checkpoint on one benchmark."""

    checkpoint: str
    title: str
    """The benchmark's title."""
    scores: list[Score]
    """The scores; empty if the evaluation failed."""
    tries: int = 1
    error: str = ""
    measured: dict[str, str] = Field(default_factory=dict)
    """The settings that affect scores; empty in results stored by older versions."""


_ENTRIES = TypeAdapter(list[Entry])


class ResultsStore:
    """The results in the output folder: `lm_eval.json`, which is replaced atomically, and tables derived from it."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder and read the stored results.

        Raises OperatorError if the folder cannot be created, RunError if another command is writing to it or the
        results cannot be read.
        """
        self.folder = folder
        self._path = folder / "lm_eval.json"
        self._entries: dict[tuple[str, str], Entry] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / ".lm_eval.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise OperatorError(f"cannot write to output_dir {folder}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise RunError(
                f"another ng_lm_eval is writing to {folder}: wait for it, or pass a different --output-dir"
            ) from error
        try:
            for entry in _ENTRIES.validate_json(self._path.read_bytes()):
                self._entries[entry.checkpoint, entry.title] = entry
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            self.close()
            raise RunError(f"{self._path} cannot be read ({error}); rename or delete it to start over") from error
        self._write_tables()  # a killed command may have written the results without the tables

    def close(self) -> None:
        """Release the lock on the folder."""
        os.close(self._lock)

    def is_pending(self, checkpoint: str, benchmark: Benchmark, measured: Mapping[str, str]) -> bool:
        """Return whether to run this evaluation: it has not succeeded yet, and has attempts left.

        Raises OperatorError if it succeeded with different settings, because the tables could not show the difference.
        """
        entry = self._entries.get((checkpoint, benchmark.title))
        if entry is None or entry.error:
            return entry is None or entry.tries < MAX_ATTEMPTS or entry.measured != measured
        keys = sorted(entry.measured.keys() | measured.keys()) if entry.measured else []
        other = [key for key in keys if entry.measured.get(key) != measured.get(key)]
        if other:
            changes = ", ".join(f"{key} {entry.measured.get(key)}, now {measured.get(key)}" for key in other)
            raise OperatorError(
                f"{self.folder} has results of {benchmark.title} for {checkpoint} with different settings ({changes}). "
                "Pass a different --output-dir or --name"
            )
        return False

    def forget_failures(self, checkpoint: str | None = None) -> None:
        """Remove the recorded failures of one checkpoint, or of all checkpoints."""
        kept = [
            entry for entry in self._entries.values() if not entry.error or checkpoint not in (None, entry.checkpoint)
        ]
        self._entries = {(entry.checkpoint, entry.title): entry for entry in kept}

    def record(self, checkpoint: str, benchmark: Benchmark, scores: list[Score], measured: Mapping[str, str]) -> None:
        """Store the scores of a successful evaluation."""
        self._keep(Entry(checkpoint=checkpoint, title=benchmark.title, scores=scores, measured=dict(measured)))

    def fail(self, checkpoint: str, benchmark: Benchmark, error: str, measured: Mapping[str, str]) -> None:
        """Store a failure. An evaluation is attempted at most MAX_ATTEMPTS times."""
        before = self._entries.get((checkpoint, benchmark.title))
        tries = before.tries + 1 if before and before.measured == measured else 1
        self._keep(
            Entry(
                checkpoint=checkpoint,
                title=benchmark.title,
                scores=[],
                tries=tries,
                error=error,
                measured=dict(measured),
            )
        )

    @property
    def scores(self) -> list[Score]:
        """All scores, sorted by step and checkpoint, and then in the order of evaluation."""
        found = [score for entry in self._entries.values() for score in entry.scores]
        return sorted(found, key=lambda score: (-1 if score.step is None else score.step, score.checkpoint))

    def failed(self, titles: Collection[str], checkpoint: str | None = None) -> list[Entry]:
        """Return the failed entries for these benchmarks, for one checkpoint or for all."""
        return [
            entry
            for entry in self._entries.values()
            if entry.error and entry.title in titles and checkpoint in (None, entry.checkpoint)
        ]

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.checkpoint, entry.title] = entry
        replace(self._path, _ENTRIES.dump_json(list(self._entries.values()), indent=2))
        self._write_tables()

    def _write_tables(self) -> None:
        scores = self.scores
        replace(self.folder / "results.csv", as_csv(scores).encode())
        replace(self.folder / "results.md", as_markdown(scores).encode())
        replace(self.folder / "results.json", as_json(scores))
