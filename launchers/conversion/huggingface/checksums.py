"""Verifies the checksums in the files of a DCP checkpoint, which torch writes but does not verify when it reads them.

Each chunk of a tensor is a ZIP archive with a CRC-32 of its values. A program may turn them off
(`torch.serialization.set_crc32_options(False)`); then all are wrong, and nothing can be verified.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rollyard.records.errors import RunError

_THREADS = 8
_BLOCK = 1 << 20


def verify_checksums(folder: Path, chunks: Mapping[str, Sequence[tuple[int, int, str]]]) -> bool:
    """Raise RunError if a chunk differs from its checksum. Returns False if there are no checksums.

    `chunks`: offset, length and tensor of each chunk, by file.
    """
    with ThreadPoolExecutor(max(1, min(_THREADS, os.cpu_count() or 1))) as pool:
        results = list(pool.map(lambda name: _verify_file(folder / name, chunks[name]), chunks))
    wrong = [damaged for damaged, _ in results]
    verified = sum(count for _, count in results)
    if not any(wrong):
        return verified > 0
    if sum(map(len, wrong)) == verified:
        return False
    file, damaged = next((name, found) for name, found in zip(chunks, wrong, strict=True) if found)
    count = sum(map(len, wrong))
    others = f" and {count - 1} other chunks" if count > 1 else ""
    raise RunError(
        f"{folder / file} is damaged: a checksum of {damaged[0]}{others} is wrong; copy or save the checkpoint again"
    )


def _verify_file(file: Path, chunks: Sequence[tuple[int, int, str]]) -> tuple[list[str], int]:
    """Return the tensors with a wrong checksum, and the number of chunks that have one."""
    damaged, count = [], 0
    with file.open("rb") as opened:
        for offset, length, name in chunks:
            opened.seek(offset)
            if opened.read(2) != b"PK":  # another serialization format
                continue
            count += 1
            try:
                with zipfile.ZipFile(_Part(opened, offset, length)) as archive:
                    if archive.testzip():
                        damaged.append(name)
            except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError):
                damaged.append(name)
    return damaged, count


class _Part(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: io.BufferedReader, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), max(0, self._length - self._position), _BLOCK)
        self._file.seek(self._offset + self._position)
        data = self._file.read(size)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
