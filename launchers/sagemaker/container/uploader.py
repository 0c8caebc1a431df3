"""RunUploader: copies checkpoints, traces and logs to S3 while the program runs.

A checkpoint is uploaded when it is complete, and gets the file COMPLETE.json last. An interrupted upload has no such
file, and the next one continues it. Other files of the run grow: they are uploaded again after a change, up to the
last line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from rollyard.launchers.sagemaker.container.checkpoint_folder import (
    MARKERS,
    State,
    checkpoints_in,
    files_of,
    has_marker,
    name_in_s3,
    seems_complete,
    upload_order,
)
from rollyard.launchers.sagemaker.container.multipart import S3Uploader
from rollyard.records.errors import RollyardError
from rollyard.records.io import s3

MARKER = MARKERS[0]
_GROWING_FACTOR = 4
"""Traces are uploaded as a whole, so less often than new checkpoints are searched for."""
FINAL_RETRY_S = 900.0
"""After the program's end, failing uploads are tried again this long: the last checkpoint is the result of the job."""
FINAL_PAUSE_S = 60.0
_TAIL_BYTES = 1 << 20


class RunUploader:
    """Uploads what appears in a run's folder, from a separate thread."""

    def __init__(
        self, run_dir: Path, address: str, uploader: S3Uploader, interval_s: float, print_line: Callable[[str], None]
    ) -> None:
        """`address`: s3://bucket/prefix that gets the checkpoints and a folder for each of the other folders."""
        self._run_dir = run_dir
        self._prefix = s3.split(address)[1].rstrip("/")
        self.address = address
        self._uploader = uploader
        self._interval_s = interval_s
        self._print = print_line
        self._seen: dict[str, State] = {}
        """State of each checkpoint at the last search."""
        self._uploaded: dict[str, object] = {}
        """What is in S3: state of a checkpoint, or uploaded length and time of a file."""
        self._due = 0.0
        self._ending = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="uploader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, limit_s: float) -> str:
        """Upload the remaining files, after the program has ended. Returns what could not be uploaded; empty if
        nothing.

        The newest checkpoints come first, because the time may not suffice for all.
        """
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(limit_s)
            if self._thread.is_alive():
                return f"the upload to {self.address} did not end within {limit_s:.0f} s"
        else:
            self._search(last=True)
        return self._problem

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            self._search(last=False)
        deadline, pause = time.monotonic() + FINAL_RETRY_S, self._interval_s
        self._search(last=True)
        while self._problem and time.monotonic() + pause < deadline:
            time.sleep(pause)
            pause = min(2 * pause, FINAL_PAUSE_S)
            self._search(last=True)

    def _search(self, *, last: bool) -> None:
        """Upload what is new. A failure is printed and tried again at the next search: it must not end the training."""
        self._problem = ""
        folders = checkpoints_in(self._run_dir / "checkpoints")
        for folder in reversed(folders) if last else folders:
            self._attempt(str(folder), lambda folder=folder: self._checkpoint(folder, last=last))  # type: ignore[misc]
        if last or time.monotonic() >= self._due:
            begun = time.monotonic()
            for file in sorted(self._run_dir.rglob("*")):
                name = file.relative_to(self._run_dir)
                if name.parts[0] != "checkpoints" and file.is_file():
                    self._attempt(str(name), lambda file=file, name=name: self._growing(file, str(name), last=last))  # type: ignore[misc]
            took = time.monotonic() - begun
            self._due = time.monotonic() + _GROWING_FACTOR * max(self._interval_s, took)

    def _attempt(self, name: str, upload: Callable[[], None]) -> None:
        try:
            upload()
        except FileNotFoundError:
            self._print(f"upload: {name} was deleted before it was uploaded")
        except (RollyardError, OSError) as error:
            self._problem = str(error)
            self._print(f"upload: {error}; trying again")

    def _checkpoint(self, folder: Path, *, last: bool) -> None:
        name = name_in_s3(folder.name, self._run_dir.name)
        state = files_of(folder)
        stable = self._seen.get(name) == state
        self._seen[name] = state
        if self._uploaded.get(name) == state:
            return
        # Once the program has ended, no file can change.
        if not (has_marker(folder) or (seems_complete(folder) and (stable or last))):
            return
        base = f"{self._prefix}/{name}"
        marker = f"{base}/{MARKER}"
        listed = [{"name": file, "size": size} for file, size, _ in state if file not in MARKERS]
        begun = time.monotonic()
        marked = self._uploader.head(marker) is not None
        same = marked and orjson.loads(self._uploader.read(marker))["files"] == listed
        # Compared by content: a checkpoint that is written again has files of the same sizes.
        changed = [str(entry["name"]) for entry in listed]
        changed = [file for file in changed if not self._uploader.has(folder / file, f"{base}/{file}")]
        if same and not changed:
            self._uploaded[name] = state
            return
        if marked:
            self._uploader.delete(marker)
        for file in upload_order(changed):
            self._uploader.upload(folder / file, f"{base}/{file}")
        if files_of(folder) != state:
            self._print(f"upload: {name} changed while it was uploaded; it will be uploaded again")
            return
        self._uploader.put(orjson.dumps({"checkpoint": name, "files": listed}), marker)
        self._uploaded[name] = state
        size = sum(size for _, size, _ in state)
        self._print(
            f"uploaded {name} ({size / 1e6:,.1f} MB in {time.monotonic() - begun:.1f} s) to {self.address}/{name}/"
        )

    def _growing(self, file: Path, name: str, *, last: bool) -> None:
        status = file.stat()
        length = status.st_size if last or file.suffix != ".jsonl" else _complete_lines(file, status.st_size)
        state = (length, status.st_mtime_ns)
        if self._uploaded.get(name) == state:
            return
        self._uploader.upload(file, f"{self._prefix}/{name}", length)
        self._uploaded[name] = state


def _complete_lines(file: Path, size: int) -> int:
    """Return the length up to the last line feed, so that readers find no torn line."""
    with file.open("rb") as opened:
        opened.seek(max(0, size - _TAIL_BYTES))
        tail = opened.read(min(size, _TAIL_BYTES))
    end = tail.rfind(b"\n")
    return size - len(tail) + end + 1 if end >= 0 else size
