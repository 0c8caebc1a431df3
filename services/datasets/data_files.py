"""Data files as the settings name them: on this machine or at s3://, plain, compressed, or a table, read line by line.

What a file is follows from its first bytes, not from its name. An object at s3:// is copied once, into a temporary file
without a name; nothing else is ever unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from rollyard.services.datasets.compression import HEAD, compression_of, decompressed, read_errors
from rollyard.services.datasets.parquet import table_lines, table_of
from rollyard.services.datasets.temporary_copy import TemporaryCopy
from rollyard.services.errors import OperatorError
from rollyard.services.io import s3
from rollyard.services.io.search_path import find_file

LONGEST_LINE = 256 * 1024 * 1024
"""Bytes; what a server takes as a request's body (services/http/request.py)."""
SIDE_FILES = {
    "_status.json": "the progress of a collection",
    "_manifest.json": "the identity of a collection",
    "_metrics.json": "the metrics of a collection",
    "_failures.jsonl": "the failed attempts of a collection",
}
"""How the files that a collection writes beside its rollouts end: none of them holds tasks."""
_MANIFEST = "_manifest.json"


class DataFile(Protocol):
    """A path, or a copy that reads like one; as text it is what its user calls it."""

    def open(self, mode: Literal["rb"], /) -> BinaryIO:
        """From the first byte on."""
        ...

    def __fspath__(self) -> str:
        """A path that this process can open."""
        ...


class DataFiles:
    """Where data files are found."""

    def __init__(self, roots: Iterable[Path]) -> None:
        """`roots`: folders to look in, the first one first."""
        self.roots: Sequence[Path] = list(roots)
        self._copies: dict[str, TemporaryCopy] = {}

    def find(self, address: str | Path) -> Path | TemporaryCopy | None:
        """The file at a path below a root, or the copy of an s3:// object; None where no root has it.

        Raises OperatorError: it is a collection's side file, or the object cannot be read.
        """
        name = str(address)
        if what := side_file(name, lambda beside: find_file(beside, self.roots) is not None):
            raise OperatorError(f"{name} holds {what}, not rows; name the data set or the rollouts themselves")
        if not name.startswith(s3.SCHEME):
            return find_file(address, self.roots)
        if name not in self._copies:
            copy = TemporaryCopy(name)
            s3.fetch(name, copy)
            self._copies[name] = copy
        return self._copies[name]

    def get(self, address: str | Path) -> Path | TemporaryCopy:
        """As `find`. Raises OperatorError also where no root has it."""
        if (found := self.find(address)) is None:
            raise OperatorError(f"{address} is not there (looked in {', '.join(map(str, self.roots))})")
        return found


def side_file(name: str, exists: Callable[[str], bool]) -> str:
    """What a collection keeps in the file of that name; empty where it is not one beside a collection's manifest."""
    for ending, what in SIDE_FILES.items():
        if name.endswith(ending) and exists(name.removesuffix(ending) + _MANIFEST):
            return what
    return ""


def is_plain(file: DataFile) -> bool:
    """Whether lines can be found again by their offsets in it. Raises OSError."""
    with file.open("rb") as opened:
        head = opened.read(HEAD)
    return not compression_of(head) and not table_of(head)


def lines_of(file: DataFile) -> Iterator[bytes]:
    """The file's lines with their ends; of a table a line per row. Lines end at \\n only: U+2028 is text.

    Raises OperatorError: it cannot be read, is damaged or cut off (after how many lines), or a line is too long.
    """
    done = 0
    compression = ""
    try:
        with file.open("rb") as opened:
            head = opened.read(HEAD)
            opened.seek(0)
            compression = compression_of(head)
            for line in _lines(opened, head, compression):
                if len(line) > LONGEST_LINE:
                    raise OperatorError(f"{file}: line {done + 1} is longer than {LONGEST_LINE:,} bytes, the most")
                yield line
                done += 1
    except EOFError as error:
        raise OperatorError(
            f"{file} is cut off: its {compression} data end in the middle, {done:,} whole lines were read. Copy it "
            "again, or make it again"
        ) from error
    except read_errors() as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        after = f" after line {done:,}" if done else ""
        raise OperatorError(f"input file {str(file)!r} cannot be read{after}: {why}") from error


def _lines(file: BinaryIO, head: bytes, compression: str) -> Iterator[bytes]:
    if table_of(head):
        return table_lines(file, head)
    source = decompressed(file, compression) if compression else file
    return iter(partial(source.readline, LONGEST_LINE + 1), b"")
