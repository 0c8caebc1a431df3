"""CheckpointWatch: finds the complete checkpoints of a training run as they appear, and has each evaluated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from rollyard.launchers.evaluation.checkpoints.checkpoint_files import stage
from rollyard.launchers.evaluation.checkpoints.checkpoint_sources import Source
from rollyard.records.errors import OperatorError, RunError


@dataclass(frozen=True)
class CheckpointWatch:
    """Polls a source of checkpoints."""

    source: Source
    staged: Path
    """Folder for links to checkpoints whose file names vLLM does not accept."""
    is_pending: Callable[[str], bool]
    """Returns whether to evaluate the checkpoint of this name."""
    evaluate: Callable[[str, Path], None]
    """Evaluates a checkpoint, given its name and a folder that vLLM can load. It records success and failure itself."""
    print_line: Callable[[str], None] = lambda text: None

    def run(self, poll_s: float, stopped: Event, *, once: bool) -> None:
        """Evaluate complete checkpoints until `stopped` is set; with `once`, the existing ones.

        Raises OperatorError if the checkpoints cannot be listed at the first attempt.
        """
        reported: dict[str, str] = {}

        def report(topic: str, message: str) -> None:
            if reported.get(topic) != message:
                reported[topic] = message
                self.print_line(message)

        polls = 0
        while not stopped.is_set():
            try:
                names = self.source.names()
            except RunError as error:
                if polls == 0:
                    raise OperatorError(str(error)) from error
                report("", f"{error}; trying again in {poll_s:.0f} s")
            else:
                interval = "" if once else f", checked every {poll_s:.0f} s"
                report("", f"{len(names)} checkpoints at {self.source.place}{interval}")
                for name in names:
                    if stopped.is_set():
                        break
                    if self.is_pending(name):
                        self._evaluate(name, report)
            polls += 1
            if once:
                return
            stopped.wait(poll_s)

    def _evaluate(self, name: str, report: Callable[[str, str], None]) -> None:
        try:
            folder, missing = self.source.fetch(name)
            if folder is None:
                report(name, f"{name} is not complete yet: {missing}")
                return
            loaded = stage(folder, self.staged / name)
        except FileNotFoundError:
            report(name, f"{name} no longer exists")
            return
        except (OSError, RunError) as error:
            report(name, f"{name} cannot be read: {error}")
            return
        self.evaluate(name, loaded)
        shutil.rmtree(self.staged / name, ignore_errors=True)
        self.source.done(name)
