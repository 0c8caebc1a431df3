"""A run's folder, `.rollyard/runs/<time>-<run id>/`: logs, config, and `head.json` by which other commands find it."""

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
from rollyard.services.types import HeadFile, Json

HOME = Path(".rollyard") / "runs"


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"

    @property
    def base(self) -> Path:
        """The folder in which the run was started."""
        return self.path.absolute().parents[len(HOME.parts)]

    @classmethod
    def create(cls, base: Path, run_id: str) -> RunFolder:
        """A new folder below `base`, named so that the newest sorts last."""
        folder = cls(base / HOME / f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id}")
        try:
            folder.logs.mkdir(parents=True)
        except OSError as error:
            raise _unwritable(base, error) from error
        return folder

    @staticmethod
    def check(base: Path) -> None:
        """Raises what `create` would; makes nothing."""
        above = base / HOME
        while not os.path.lexists(above):
            above = above.parent
        try:
            with tempfile.TemporaryFile(dir=above):
                pass
        except OSError as error:
            raise _unwritable(base, error) from error

    def write_head(self, head: HeadFile) -> None:
        """Tell other commands where the head is. Readable by its owner only: it may hold the run token."""
        path = self.path / "head.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(orjson.dumps(head.model_dump()))

    def write_config(self, tree: Json) -> None:
        """The run's merged config, for later reading; give it without its secrets."""
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
        (self.path / "config.yaml").write_text(text, encoding="utf-8")

    def forget_head(self) -> None:
        """The run is over."""
        (self.path / "head.json").unlink(missing_ok=True)


def _unwritable(base: Path, error: OSError) -> OperatorError:
    told = f"a run writes its logs below {base / HOME}, which cannot be made: {error.strerror}"
    return OperatorError(f"{told}. Start it from a folder that you may write to.")


def running_heads(base: Path) -> list[HeadFile]:
    """Heads of this user's runs that were started from `base` and whose process is alive, newest first."""
    heads: list[HeadFile] = []
    for path in sorted((base / HOME).glob("*/head.json"), reverse=True):
        try:
            head = HeadFile.model_validate_json(_read_own(path))
        except (OSError, ValidationError):
            continue
        if _alive(head.pid) and _same_folder(head.folder, base):
            heads.append(head)
    return heads


def _read_own(path: Path) -> bytes:
    """The file's bytes. Raises PermissionError where another user made it: the folder may be shared, the run is not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is not a file of this user")
        return file.read()


def _same_folder(told: str, base: Path) -> bool:
    """Whether a run that was started in `told` is one of `base`: false for a link into another run's folder."""
    try:
        return not told or Path(told).samefile(base)
    except FileNotFoundError:  # the folder was renamed since
        return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # gone, or the number of another user's process by now
        return False
    return True
