"""RunFolder: the folder of a training run, locked by the process that trains."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.io.locked_files import LocksUnsupported, open_locked
from rollyard.records.types import Json
from rollyard.training.run.git_state import git_record, write_patches
from rollyard.training.run.settings_check import check_settings, read_settings, settings_yaml
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.train_config import TrainConfig
from rollyard.training.versions import version_of_step

_LOCK = ".ng_train.lock"
_DATA, _EVALUATION = "data", "evaluation_data"
_DATASETS = {_DATA: "dataset", _EVALUATION: "evaluation dataset"}
_PACKAGES = ("rollyard", "torch", "transformers", "trl", "accelerate", "peft", "vllm")


class RunFolder:
    """Config, record and git state of a run. Only one process at a time has it open."""

    def __init__(self, config: TrainConfig, record: Json) -> None:
        self.config = config
        self.paths = TrainingPaths(config.output_dir)
        self._record = record

    @classmethod
    @contextmanager
    def opened(
        cls, config: TrainConfig, *, command: Sequence[str], project: Path, print_line: Callable[[str], None]
    ) -> Iterator[RunFolder]:
        """Lock the folder, and record this start with its settings and the git state of `project`.

        Raises OperatorError if the folder has a run with other settings, and RunError if another process trains in it
        or it cannot be written.
        """
        paths = TrainingPaths(config.output_dir)
        try:
            paths.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OperatorError(f"output_dir {paths.root} cannot be created: {error.strerror}") from error
        descriptor = _lock(paths.root)
        try:
            before = read_settings(paths.config)
            if before is not None:
                check_settings(before, config, paths.root)
            folder = cls(config, _read_record(paths.run_record))
            folder._begin(command, project)
            if folder.starts > 1:
                print_line(f"{paths.root}: start {folder.starts} of this run")
            yield folder
        finally:
            os.close(descriptor)

    @property
    def name(self) -> str:
        """Name of the run, for trackers: that of its folder at its first start."""
        return str(self._record["name"])

    @property
    def run_id(self) -> str:
        """Identifies the run to trackers, which thereby continue it when training is resumed."""
        return str(self._record["id"])

    @property
    def starts(self) -> int:
        """How often training has been started in this folder, this time included."""
        return len(self._record["starts"])

    def check_data(self, identity: Json, evaluation: Json | None = None) -> None:
        """Record the identities of the datasets. Raises OperatorError if the run was started with other rows."""
        check_rows(self.paths, identity, evaluation, self._record)
        self._record.setdefault(_DATA, identity)
        if evaluation is not None:
            self._record.setdefault(_EVALUATION, evaluation)
        self._write()

    def record_end(self, state: str, step: int) -> None:
        """Record how this start ended."""
        self._record["starts"][-1] |= {"ended": time.time(), "state": state, "step": step}
        if state == "complete":
            self._record["complete"] = {"step": step, "max_steps": self.config.max_steps}
        self._write()

    def _begin(self, command: Sequence[str], project: Path) -> None:
        git = git_record(project)
        start = {
            "time": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "command": list(command),
            "git": git,
            "versions": _versions(),
        }
        self._record = {
            "id": secrets.token_hex(8),
            "name": self.paths.root.absolute().name,
            "created": start["time"],
            **self._record,
            "starts": [*self._record.get("starts", ()), start],
        }
        # The number of starts is on disk before a version of the weights is named after it.
        self._write()
        write_patches(project, self.paths.patches if self.starts == 1 else self.paths.patches / f"start_{self.starts}")
        replace(self.paths.config, settings_yaml(self.config).encode())

    def _write(self) -> None:
        replace(self.paths.run_record, orjson.dumps(self._record, option=orjson.OPT_INDENT_2) + b"\n")


def completed_step(config: TrainConfig) -> int | None:
    """Return the number of updates after which the run in the folder was complete; None if it is not complete with the
    current max_steps, or its last checkpoint is gone.

    With max_steps 0 it is complete once the data is exhausted.
    """
    paths = TrainingPaths(config.output_dir)
    end = _read_record(paths.run_record).get("complete")
    if not end or end["max_steps"] != config.max_steps:
        return None
    step = int(end["step"])
    return step if (paths.checkpoints / version_of_step(step)).is_dir() else None


def check_rows(paths: TrainingPaths, identity: Json, evaluation: Json | None, record: Json | None = None) -> None:
    """Raise OperatorError if the run in the folder was started with other rows. `record`: that of run.json, if it was
    read.
    """
    record = _read_record(paths.run_record) if record is None else record
    for name, now in ((_DATA, identity), (_EVALUATION, evaluation)):
        before = record.get(name, now)
        if now is not None and before != now:
            raise OperatorError(
                f"{paths.root} was started with other rows: its {_DATASETS[name]} had {before}, now it has {now}. "
                "Restore the dataset, or choose another output_dir"
            )


def _lock(root: Path) -> int:
    try:
        return open_locked(root / _LOCK)
    except LocksUnsupported:
        raise
    except RunError as error:
        raise RunError(f"another process is training in {root}: wait for it, or choose another output_dir") from error


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RunError(
            f"{path} is not valid JSON ({error}). It counts the starts of this run: restore it, or choose another "
            "output_dir"
        ) from error
    return dict(record)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
