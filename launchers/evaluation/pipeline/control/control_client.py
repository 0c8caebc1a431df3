"""Finds evaluations and talks to their control servers."""

from __future__ import annotations

import os
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.pipeline.control.control_server import RECORDS, ControlRecord
from rollyard.launchers.evaluation.pipeline.eval_state import FINAL, EvalState, is_alive, read_state
from rollyard.records.errors import OperatorError, RunError

TIMEOUT_S = 10.0
POLL_S = 0.1


@dataclass(frozen=True)
class FoundEval:
    """An evaluation, running or not."""

    folder: EvalFolder
    record: ControlRecord | None

    def state(self) -> EvalState | None:
        """The state on disk. That of a killed evaluation says that it is running: check `is_running`."""
        return read_state(self.folder.state)

    def is_running(self) -> bool:
        state = self.state()
        return state is not None and state.state not in FINAL and is_alive(state)

    def is_current(self) -> bool:
        """Return whether the record is that of the last evaluation in the folder, not of an earlier one."""
        state = self.state()
        return state is not None and self.record is not None and state.id == self.record.id

    def call(self, method: str, path: str) -> EvalState:
        """Send a request to the control server. Raises RunError if there is no answer."""
        if self.record is None:
            raise RunError(f"{self.folder.own} holds no address of a running evaluation that this user may read")
        request = urllib.request.Request(
            f"{self.record.address}{path}",
            method=method,
            headers={"authorization": f"Bearer {self.record.token}"},
            data=b"" if method == "POST" else None,
        )
        # Without proxies: the address is on loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return EvalState.model_validate_json(answer.read())
        except (OSError, urllib.error.URLError, ValidationError) as error:
            raise RunError(f"the evaluation in {self.folder.own} does not answer: {error}") from error

    def wait(self, done: Callable[[EvalState], bool]) -> EvalState | None:
        """Wait until `done`, or until the evaluation has ended; return its last state."""
        while self.is_running():
            state = self.state()
            if state is not None and done(state):
                return state
            time.sleep(POLL_S)
        return self.state()


def find_eval(here: Path, name: str | None) -> FoundEval:
    """Return the evaluation with this id or in this folder; without a name, the newest one started from `here`.

    Evaluations that were started from a parent folder are found, too. Raises OperatorError if there is none.
    """
    if name is not None and (found := _in_folder(here / name)) is not None:
        return found
    if name is None and (found := _around(here)) is not None:
        return found
    for base in (here, *here.parents):
        records = [record for record in _records(base) if name is None or record.id == name]
        found_here = [FoundEval(EvalFolder(Path(record.folder), record.worker), record) for record in records]
        if found_here:
            return next((one for one in found_here if one.is_current() and one.is_running()), found_here[0])
    if name is None:
        raise OperatorError(f"no evaluation was started from {here} or a folder above it; pass its id or its folder")
    raise OperatorError(f"no evaluation {name!r} was started from {here} or a folder above it, and it is not a folder")


def _around(here: Path) -> FoundEval | None:
    """The evaluation whose folder contains `here`."""
    return next((found for base in (here, *here.parents) if (found := _in_folder(base)) is not None), None)


def _in_folder(path: Path) -> FoundEval | None:
    if not (path / "eval_state.json").is_file():
        return None
    worker = path.name if path.parent.name == "workers" else None
    folder = EvalFolder(path if worker is None else path.parents[1], worker)
    return FoundEval(folder, _read(folder.control))


def _records(base: Path) -> Iterator[ControlRecord]:
    for path in sorted((base / RECORDS).glob("*.json"), reverse=True):
        if (record := _read(path)) is not None:
            yield record


def _read(path: Path) -> ControlRecord | None:
    """Read a record of this user; records of others are ignored, because the folder may be shared."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
                return None
            return ControlRecord.model_validate_json(file.read())
    except (OSError, ValidationError):
        return None
