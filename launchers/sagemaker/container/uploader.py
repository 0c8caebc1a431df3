"""RunUploader: copies checkpoints, traces and logs to S3 while the program runs.

A checkpoint is uploaded when it is complete, and gets the file COMPLETE.json last. Other files grow: they are uploaded
again after a change, up to the last line.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from rollyard.launchers.evaluation.checkpoints import find_missing_part, step_of, unfinished
from rollyard.records import s3
from rollyard.records.errors import RollyardError
from rollyard.records.optional import load
from rollyard.records.s3 import AwsError, aws_errors
from rollyard.services.backoff import Backoff

MARKERS = ("COMPLETE.json", "_SUCCESS", "_COMPLETE", ".complete", "DONE")
"""Files that training code writes last."""
_DCP_INDEX = ".metadata"
"""torch.distributed.checkpoint writes this file when every process has written its shard."""
_NAMED = re.compile(r".+_(?:step\d+|final)")

MARKER = MARKERS[0]
_GROWING_FACTOR = 4
"""Traces are uploaded as a whole, so less often than new checkpoints are searched for."""
FINAL_RETRY_S = 900.0
"""After the program's end, failing uploads are tried again this long: the last checkpoint is the result of the job."""
FINAL_PAUSE_S = 60.0
_TAIL_BYTES = 1 << 20


@dataclass
class RunUploader:
    run_dir: Path
    address: str
    """s3://bucket/prefix that gets the checkpoints and a folder for each of the other folders."""
    uploader: S3Uploader
    interval_s: float
    print_line: Callable[[str], None]
    _seen: dict[str, State] = field(default_factory=dict)
    _uploaded: dict[str, object] = field(default_factory=dict)
    """What is in S3: state of a checkpoint, or uploaded length and time of a file."""
    _due: float = 0.0
    _problem: str = ""

    def __post_init__(self) -> None:
        self._prefix = s3.split(self.address)[1].rstrip("/")
        self._ending = threading.Event()
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
        while not self._ending.wait(self.interval_s):
            self._search(last=False)
        deadline, failures = time.monotonic() + FINAL_RETRY_S, 1
        pauses = Backoff(self.interval_s, FINAL_PAUSE_S)
        self._search(last=True)
        while self._problem and time.monotonic() + pauses.pause_s(failures) < deadline:
            time.sleep(pauses.pause_s(failures))
            failures += 1
            self._search(last=True)

    def _search(self, *, last: bool) -> None:
        """Upload what is new. A failure is printed and tried again at the next search: it must not end the training."""
        self._problem = ""
        folders = _checkpoints_in(self.run_dir / "checkpoints")
        for folder in reversed(folders) if last else folders:
            self._attempt(str(folder), lambda folder=folder: self._checkpoint(folder, last=last))  # type: ignore[misc]
        if last or time.monotonic() >= self._due:
            begun = time.monotonic()
            for file in sorted(self.run_dir.rglob("*")):
                name = file.relative_to(self.run_dir)
                if name.parts[0] != "checkpoints" and file.is_file():
                    self._attempt(str(name), lambda file=file, name=name: self._growing(file, str(name), last=last))  # type: ignore[misc]
            took = time.monotonic() - begun
            self._due = time.monotonic() + _GROWING_FACTOR * max(self.interval_s, took)

    def _attempt(self, name: str, upload: Callable[[], None]) -> None:
        try:
            upload()
        except FileNotFoundError:
            self.print_line(f"upload: {name} was deleted before it was uploaded")
        except (RollyardError, OSError) as error:
            self._problem = str(error)
            self.print_line(f"upload: {error}; trying again")

    def _checkpoint(self, folder: Path, *, last: bool) -> None:
        name = name_in_s3(folder.name, self.run_dir.name)
        state = _files_of(folder)
        stable = self._seen.get(name) == state
        self._seen[name] = state
        if self._uploaded.get(name) == state:
            return
        # Other files may follow the weights. Once the program has ended, no file can change.
        complete = (stable or last) and ((folder / _DCP_INDEX).is_file() or not find_missing_part(folder))
        if not complete and not any((folder / name).is_file() for name in MARKERS):
            return
        base = f"{self._prefix}/{name}"
        marker = f"{base}/{MARKER}"
        listed = [{"name": file, "size": size} for file, size, _ in state if file not in MARKERS]
        begun = time.monotonic()
        marked = self.uploader.head(marker) is not None
        same = marked and orjson.loads(self.uploader.read(marker))["files"] == listed
        # Compared by content: a checkpoint that is written again has files of the same sizes.
        changed = [str(entry["name"]) for entry in listed]
        changed = [file for file in changed if not self.uploader.has(folder / file, f"{base}/{file}")]
        if same and not changed:
            self._uploaded[name] = state
            return
        if marked:
            self.uploader.delete(marker)
        # Readers that do not know our marker require config.json: it comes last.
        for file in sorted(changed, key=lambda name: (name == "config.json", name)):
            self.uploader.upload(folder / file, f"{base}/{file}")
        if _files_of(folder) != state:
            self.print_line(f"upload: {name} changed while it was uploaded; it will be uploaded again")
            return
        self.uploader.put(orjson.dumps({"checkpoint": name, "files": listed}), marker)
        self._uploaded[name] = state
        size = sum(size for _, size, _ in state)
        self.print_line(
            f"uploaded {name} ({size / 1e6:,.1f} MB in {time.monotonic() - begun:.1f} s) to {self.address}/{name}/"
        )

    def _growing(self, file: Path, name: str, *, last: bool) -> None:
        status = file.stat()
        length = status.st_size if last or file.suffix != ".jsonl" else _complete_lines(file, status.st_size)
        state = (length, status.st_mtime_ns)
        if self._uploaded.get(name) == state:
            return
        self.uploader.upload(file, f"{self._prefix}/{name}", length)
        self._uploaded[name] = state


def _complete_lines(file: Path, size: int) -> int:
    """Return the length up to the last line feed, so that readers find no torn line."""
    with file.open("rb") as opened:
        opened.seek(max(0, size - _TAIL_BYTES))
        tail = opened.read(min(size, _TAIL_BYTES))
    end = tail.rfind(b"\n")
    return size - len(tail) + end + 1 if end >= 0 else size


State = tuple[tuple[str, int, int], ...]


def _files_of(folder: Path) -> State:
    """Return the state of a folder's files, sorted by name. Raises OSError if it disappears."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(found)


def _checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoint folders, oldest step first; links such as `latest` and temporary names are left out."""
    try:
        found = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        return []
    steps = {path: step_of(path.name) for path in found if not unfinished(path.name)}
    # A name without a step, such as `final`, is the last one.
    return sorted(steps, key=lambda path: (steps[path] is None, steps[path] or 0, path.name))


def name_in_s3(folder: str, run: str) -> str:
    """Return `<run>_step<N>` or `<run>_final`, unless the folder already has a name of this form."""
    if _NAMED.fullmatch(folder):
        return folder
    if folder == "final":
        return f"{run}_final"
    step = step_of(folder)
    return folder if step is None else f"{run}_step{step}"


PART_BYTES = 64 * 1024 * 1024
"""Smaller files are uploaded by one request."""
MAX_PARTS = 9_000
_CONCURRENT_PARTS = 4


@dataclass(frozen=True)
class S3Uploader:
    client: Any
    bucket: str
    part_bytes: int = PART_BYTES

    def upload(self, file: Path, key: str, length: int | None = None) -> None:
        """Upload a file, or its first `length` bytes. S3 shows the object only when it is complete."""
        with file.open("rb") as opened:
            size = file.stat().st_size if length is None else length
            with aws_errors(f"s3://{self.bucket}/{key} cannot be uploaded"):
                if size <= self.part_bytes:
                    self.client.put_object(Bucket=self.bucket, Key=key, Body=opened.read(size))
                else:
                    transfer = load("boto3.s3.transfer", "aws", "a SageMaker job")
                    parts = transfer.TransferConfig(
                        multipart_threshold=self.part_bytes,
                        multipart_chunksize=self._part_size(size),
                        max_concurrency=_CONCURRENT_PARTS,
                    )
                    source = opened if length is None else _Beginning(opened, length)
                    self.client.upload_fileobj(source, self.bucket, key, Config=parts)

    def put(self, data: bytes, key: str) -> None:
        with aws_errors(f"s3://{self.bucket}/{key} cannot be uploaded"):
            self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        with aws_errors(f"s3://{self.bucket}/{key} cannot be deleted"):
            self.client.delete_object(Bucket=self.bucket, Key=key)

    def has(self, file: Path, key: str) -> bool:
        """Return whether the object has exactly the file's content, by S3's checksum."""
        head = self.head(key)
        if head is None or head["ContentLength"] != (size := file.stat().st_size):
            return False
        with file.open("rb") as opened:
            if size <= self.part_bytes:
                etag = hashlib.file_digest(opened, "md5").hexdigest()
            else:
                sums = [hashlib.md5(part).digest() for part in _parts(opened, size, self._part_size(size))]
                etag = f"{hashlib.md5(b''.join(sums)).hexdigest()}-{len(sums)}"
        return str(head["ETag"]).strip('"') == etag

    def head(self, key: str) -> dict[str, Any] | None:
        """Return the properties of an object; None if it does not exist."""
        try:
            with aws_errors(f"s3://{self.bucket}/{key} cannot be read"):
                found: dict[str, Any] = self.client.head_object(Bucket=self.bucket, Key=key)
        except AwsError as error:
            if error.status == 404:
                return None
            raise
        return found

    def read(self, key: str) -> bytes:
        with aws_errors(f"s3://{self.bucket}/{key} cannot be read"):
            data: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return data

    def _part_size(self, size: int) -> int:
        return max(self.part_bytes, -(-size // MAX_PARTS))


def _parts(opened: BinaryIO, size: int, part_size: int) -> Iterator[bytes]:
    for _ in range(0, size, part_size):
        yield opened.read(part_size)


class _Beginning:
    """The first bytes of a file that grows."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data
