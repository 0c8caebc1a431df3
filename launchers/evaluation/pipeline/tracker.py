"""EvalTracker: the current state of an evaluation, written to its state file and reported to the user."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rollyard.launchers.evaluation.pipeline.eval_state import EvalState, write_state
from rollyard.records.errors import RunError
from rollyard.records.types import CollectionStatus


class EvalObserver(Protocol):
    """Shows an evaluation to its user."""

    def print_line(self, text: str) -> None:
        """Show a message."""
        ...

    def show(self, status: CollectionStatus) -> None:
        """Show the progress of the collection; called about once a second while it runs."""
        ...

    def collection_ended(self) -> None:
        """Called when a collection has ended, before the next message."""
        ...


class EvalTracker:
    """Holds the state and replaces its file whenever it changes."""

    def __init__(self, state: EvalState, path: Path, observer: EvalObserver) -> None:
        self.state = state
        self.observer = observer
        self._path = path

    def update(self, **changes: Any) -> None:
        """Change fields of the state. A full disk is reported when rollouts are written, not here."""
        changed = self.state.model_copy(update=changes)
        if changed == self.state:
            return
        self.state = changed.model_copy(update={"updated": time.time()})
        try:
            write_state(self._path, self.state)
        except (RunError, OSError):
            return

    def progress(self, status: CollectionStatus | None) -> None:
        """Update the counts from the collection's status file."""
        if status is not None:
            self.update(measured=status.measured, expected=status.expected, failed=status.failed)

    def print_line(self, text: str) -> None:
        self.observer.print_line(text)


Print = Callable[[str], None]
