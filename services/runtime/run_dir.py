"""A run's directory, `.rollyard/runs/<time>-<run id>/`: logs, config, and `head.json`, which other commands read."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import orjson
import yaml
from pydantic import ValidationError

from rollyard.records.errors import OperatorError
from rollyard.records.run_types import HeadFile
from rollyard.records.types import Json
from rollyard.records.writable import open_private

HOME = Path(".rollyard") / "runs"
KEPT_RUNS = 50
"""How many folders of ended runs are kept when another run starts."""
_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-\w+")


class RunFolder:
    def __init__(self, path: Path, logs: Path | None = None) -> None:
        """`logs`: the folder of the servers' logs, if it is not in this directory."""
        self.path = path
        self.logs = path / "logs" if logs is None else logs

    @property
    def base(self) -> Path:
        """The working directory in which the run was started."""
        return self.path.absolute().parents[len(HOME.parts)]

    @classmethod
    def create(cls, base: Path, run_id: str, logs: Path | None = None) -> RunFolder:
        """Create a run directory under `base`. Its name begins with the time, so that names sort by start time."""
        folder = cls(base / HOME / f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id}", logs)
        try:
            folder.path.parent.mkdir(parents=True, exist_ok=True)
            folder.path.mkdir(mode=0o700)
            folder.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(base, error) from error
        _tidy(folder.path.parent)
        return folder

    @staticmethod
    def check(base: Path) -> None:
        """Raise OperatorError if `create` would fail, without creating anything."""
        parent = base / HOME
        while not os.path.lexists(parent):
            parent = parent.parent
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            raise _unwritable(base, error) from error

    def write_head(self, head: HeadFile) -> None:
        """Write `head.json` for other commands. Only its owner can read it, because it may contain the run token."""
        path = self.path / "head.json"
        with open_private(path, os.O_TRUNC) as file:
            file.write(orjson.dumps(head.model_dump()))

    def write_config(self, tree: Json) -> None:
        """Write the run's merged config. Secrets must already be redacted."""
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
        with open_private(self.path / "config.yaml", os.O_TRUNC) as file:
            file.write(text.encode())

    def end(self) -> None:
        """Delete `head.json`, so that commands no longer find the run, and close its files to other users."""
        (self.path / "head.json").unlink(missing_ok=True)
        for path in self.path.rglob("*"):
            with suppress(OSError):
                if not path.is_symlink() and path.stat().st_uid == os.geteuid():
                    path.chmod(0o700 if path.is_dir() else 0o600)


def _unwritable(base: Path, error: OSError) -> OperatorError:
    message = f"cannot create {base / HOME}, where a run writes its logs: {error.strerror}"
    return OperatorError(f"{message}. Start the run from a folder that you may write to.")


def _tidy(runs: Path) -> None:
    """Delete what ended runs of this user have left: `head.json` after a crash, and all but the newest folders."""
    ended = 0
    for path in sorted(runs.iterdir(), reverse=True):
        with suppress(OSError):
            found = path.lstat()
            if not _NAME.fullmatch(path.name) or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if os.path.lexists(path / "head.json"):
                try:
                    head = HeadFile.model_validate_json(_read_own(path / "head.json"))
                except ValidationError:
                    continue
                if head.host not in ("", socket.gethostname()) or _alive(head.pid):
                    continue
                (path / "head.json").unlink()
            ended += 1
            if ended > KEPT_RUNS:
                shutil.rmtree(path, ignore_errors=True)


def running_heads(base: Path) -> list[HeadFile]:
    """Return the heads of this user's live runs that were started from `base`, newest first."""
    return [head for head in _heads(base) if _alive(head.pid)]


def killed_heads(base: Path) -> list[HeadFile]:
    """Return the heads of this user's runs that were started from `base` and did not end by themselves."""
    return [head for head in _heads(base) if not _alive(head.pid)]


def _heads(base: Path) -> list[HeadFile]:
    heads: list[HeadFile] = []
    for path in sorted((base / HOME).glob("*/head.json"), reverse=True):
        try:
            head = HeadFile.model_validate_json(_read_own(path))
        except (OSError, ValidationError):
            continue
        if _same_folder(head.folder, base):
            heads.append(head)
    return heads


def _read_own(path: Path) -> bytes:
    """Return the file's bytes. Raises PermissionError if another user owns it, because the folder may be shared."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is not owned by this user")
        return file.read()


def _same_folder(started_in: str, base: Path) -> bool:
    """Return whether `started_in` is `base`. False if the run directory is a symlink to another folder's."""
    try:
        return not started_in or Path(started_in).samefile(base)
    except FileNotFoundError:  # the folder has been renamed
        return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # exited, or the id now belongs to another user's process
        return False
    return True
