"""LaunchFolder: the files of a launch, and how launches are found.

$LOG/nemo-rl/<jobname>/<launch id>/
    launch.json        the plan
    submitted.jsonl    which jobs SLURM has accepted
    conversion/        job folder of the conversion
    <combination>/
        eval.yaml      config of the evaluation
        run/           its output: rollouts, report, logs
        job-1/         job folder: script and logs of SLURM
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rollyard.launchers.slurm.launch.launch_records import Launch
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.jsonl import replace


@dataclass(frozen=True)
class LaunchFolder:
    root: Path

    @property
    def launch(self) -> Path:
        return self.root / "launch.json"

    @property
    def submitted(self) -> Path:
        return self.root / "submitted.jsonl"

    def read(self) -> Launch:
        """Return the launch. Raises OperatorError if the folder contains none."""
        try:
            return Launch.model_validate_json(self.launch.read_bytes())
        except FileNotFoundError as error:
            raise OperatorError(
                f"{self.root} is not the folder of a launch: it has no launch.json; expected $LOG/nemo-rl/JOBNAME/ID"
            ) from error
        except (OSError, ValidationError) as error:
            problem = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
            raise RunError(f"{self.launch} cannot be read: {problem}") from error

    def write(self, launch: Launch, files: Mapping[Path, str]) -> None:
        """Create the folders and files of a launch. launch.json comes last: a folder without it is no launch.

        Raises RunError if something cannot be written.
        """
        try:
            for path in [job.spec.folder for job in launch.jobs] + [path.parent for path in files]:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create {error.filename}: {error.strerror}") from error
        for path, text in files.items():
            replace(path, text.encode())
            with suppress(OSError):
                path.chmod(0o600)  # the config of an endpoint may contain a key
        self.write_launch(launch)

    def write_launch(self, launch: Launch) -> None:
        replace(self.launch, launch.model_dump_json(indent=2).encode() + b"\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the launch against other launchers on this host. Raises RunError if one holds the lock.

        On a file system without locks, this does nothing: the names of the jobs still prevent duplicates.
        """
        fd = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(f"another ng_eval_launcher is submitting {self.root}: wait for it") from error
            except OSError:
                pass
            yield
        finally:
            os.close(fd)


def launches(log_root: Path, jobname: str | None = None) -> list[Launch]:
    """Return the readable launches below `log_root`, oldest first."""
    found = []
    for path in log_root.glob(f"{jobname or '*'}/*/launch.json"):
        with suppress(OperatorError, RunError):
            found.append(LaunchFolder(path.parent).read())
    return sorted(found, key=lambda launch: (launch.created, launch.launch_id))


def _is_same(first: Path, second: Path) -> bool:
    """Return whether two paths are one folder, which several mounts may show."""
    with suppress(OSError):
        return first.samefile(second)
    return False


def find_launch(log_root: Path, folder: Path | None, jobname: str | None = None) -> Launch:
    """Return the launch in `folder`, else the newest one. Raises OperatorError if there is none."""
    if folder is not None:
        path = folder.expanduser().resolve()
        launch = LaunchFolder(path).read()
        if not _is_same(launch.folder, path):
            raise OperatorError(
                f"{path} was moved or copied: its jobs and files belong to {launch.folder}; move it back, or pass that"
            )
        return launch
    found = launches(log_root, jobname)
    if not found:
        place = log_root / jobname if jobname else log_root
        raise OperatorError(f"no launch in {place}; pass the folder of a launch, or set LOG as for the launch")
    return found[-1]
