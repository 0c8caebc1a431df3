"""A run's directory, `.rollyard/runs/<time>-<run id>/`: logs, config, and `head.json`, which other commands read."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path

import orjson
import yaml
from pydantic import ValidationError

from rollyard.services.errors import OperatorError
from rollyard.services.run_types import HeadFile
from rollyard.services.types import Json

HOME = Path(".rollyard") / "runs"


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
            folder.path.mkdir(parents=True)
            folder.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(base, error) from error
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
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(orjson.dumps(head.model_dump()))

    def write_config(self, tree: Json) -> None:
        """Write the run's merged config. Secrets must already be redacted."""
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
        (self.path / "config.yaml").write_text(text, encoding="utf-8")

    def forget_head(self) -> None:
        """Delete `head.json`, so that commands no longer find the run."""
        (self.path / "head.json").unlink(missing_ok=True)


def _unwritable(base: Path, error: OSError) -> OperatorError:
    message = f"cannot create {base / HOME}, where a run writes its logs: {error.strerror}"
    return OperatorError(f"{message}. Start the run from a folder that you may write to.")


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
