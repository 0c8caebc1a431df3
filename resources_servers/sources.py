"""Where the rows of the worlds' `prepare.py` come from: a local file, S3, the Hugging Face hub, in that order.

Downloads go to a temporary folder that is removed, and the output appears whole or not at all, so nothing half-made is
ever taken for data. Files may be .jsonl, .json (a list), each also as .gz, .parquet, .arrow, or a folder of them (what
`datasets.save_to_disk` writes). S3 needs the extra `aws`; the hub, Parquet and Arrow need the extra `hub`.

    with rows_from(Places(local=Path("test.jsonl"), hub=HubFiles("openai/gsm8k", "main/test-*.parquet"))) as rows:
        write_rows(Path("out.jsonl"), (made(row) for row in rows))
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import gzip
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from services import s3
from services.cli.rollout_files import check_output
from services.cli.script import ScriptParser, positive
from services.errors import OperatorError, RunError
from services.extras import load
from services.jsonl import replace
from services.rows import parsed
from services.terminal import plain
from services.types import Json

DESCRIPTIONS = ("dataset_info.json", "state.json", "dataset_dict.json")
"""What `save_to_disk` writes beside its Arrow files: JSON, and no rows."""
READABLE = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet", ".arrow")


@dataclass(frozen=True)
class HubFiles:
    """Files of a data set on the Hugging Face hub."""

    repo: str
    files: str
    """A glob over the repository's paths, such as `main/test-*.parquet`."""
    revision: str = "main"


@dataclass(frozen=True)
class Places:
    """Where rows may be; the first that has them is used, and those that failed before it are said."""

    local: Path | None = None
    """A file or a folder."""
    s3: str | None = None
    """`s3://bucket/key` of a file, or a prefix that ends with `/`."""
    hub: HubFiles | None = None


def _say(line: str) -> None:
    print(plain(line), file=sys.stderr)


@contextlib.contextmanager
def rows_from(places: Places, say: Callable[[str], None] = _say) -> Iterator[Iterator[Json]]:
    """The rows of the first place that has them. Raises OperatorError, RunError: each one's reason if none has."""
    with tempfile.TemporaryDirectory(prefix="rollyard-rows-") as folder:
        yield read_rows(_fetched(places, Path(folder), say))


def read_rows(path: Path) -> Iterator[Json]:
    """The rows of a file, or of a folder's files by name. Raises OperatorError for what is no data."""
    if path.is_dir():
        # Downloaders keep books of their own in hidden folders.
        found = (
            file for file in path.rglob("*") if not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        files = sorted(file for file in found if _holds_rows(file.name))
        if not files:
            raise OperatorError(f"{path} holds no {', '.join(READABLE)} file")
        for file in files:
            yield from read_rows(file)
        return
    try:
        for number, row in enumerate(_items(path), 1):
            if not isinstance(row, dict):
                raise OperatorError(f"{path}: row {number} is a JSON {type(row).__name__}; expected an object")
            yield row
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror or error}") from error
    except (OperatorError, EOFError, ValueError, zlib.error) as error:  # pyarrow's errors are ValueErrors
        raise OperatorError(f"{path} cannot be read: {error}") from error


def write_rows(path: Path, rows: Iterable[Json]) -> int:
    """Write JSON Lines that appear whole or not at all; how many. A failing iterator leaves what was there before."""
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for row in rows:
            yield orjson.dumps(row) + b"\n"
            count += 1
        if not count:
            raise OperatorError(f"no rows for {path}: the source is empty, or everything was filtered out")

    replace(path, lines())
    return count


def source_options(description: str | None) -> argparse.ArgumentParser:
    """The options that every `prepare.py` has."""
    parser = ScriptParser(description=description)
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument("--local", type=Path, help="a file or folder to read first")
    parser.add_argument("--s3", help="s3://bucket/key, or a prefix ending with /, read if there is no local file")
    parser.add_argument("--offline", action="store_true", help="do not ask the Hugging Face hub when neither has rows")
    parser.add_argument("--limit", type=positive, help="rows to write (default: all)")
    return parser


def prepare(options: argparse.Namespace, hub: HubFiles, make: Callable[[int, Json], Json | None]) -> None:
    """Write the rows that `make` builds from each source row and its number (None: left out).

    Raises OperatorError for a source that is not there or not as expected, RunError where a download failed.
    """
    check_output(options.output, [options.local] if options.local else ())
    places = Places(options.local, options.s3, None if options.offline else hub)
    with rows_from(places) as rows:
        made = (row for row in _made(rows, make) if row is not None)
        count = write_rows(options.output, islice(made, options.limit))
    print(f"{count} rows -> {options.output}")


def _made(rows: Iterator[Json], make: Callable[[int, Json], Json | None]) -> Iterator[Json | None]:
    for number, row in enumerate(rows):
        try:
            yield make(number, row)
        except (KeyError, TypeError, ValueError) as error:
            found = ", ".join(sorted(row)) or "nothing"
            why = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise OperatorError(f"row {number} (with {found}) is not what was expected: {why}") from error


def _fetched(places: Places, folder: Path, say: Callable[[str], None]) -> Path:
    """A file or folder that holds the rows, downloaded into `folder` if need be."""
    ways: list[tuple[str, Callable[[Path], Path]]] = []
    if places.local is not None:
        ways.append((f"local file {places.local}", partial(_from_local, places.local)))
    if places.s3 is not None:
        ways.append((places.s3, partial(_from_s3, places.s3)))
    if places.hub is not None:
        ways.append((f"hub's {places.hub.repo}", partial(_from_hub, places.hub)))
    reasons: list[str] = []
    mistaken = not ways
    for number, (name, fetch) in enumerate(ways):
        try:
            target = folder / str(number)
            target.mkdir()
            return fetch(target)
        except Exception as error:  # a library's own error, whichever: the reason is told, the next place is tried
            reasons.append(f"{name}: {error}")
            mistaken = mistaken or isinstance(error, OperatorError | FileNotFoundError)
            if number + 1 < len(ways):
                say(f"{reasons[-1]}; next: {ways[number + 1][0]}")
    # What was named and is not there is the operator's to mend; a download that failed may work the next time.
    raise (OperatorError if mistaken else RunError)(
        "no rows found. " + ("; ".join(reasons) or "No place was named: give --local or --s3")
    )


def _from_local(path: Path, folder: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError("no such file or folder")
    return path


def _from_s3(address: str, folder: Path) -> Path:
    bucket, key = s3.split(address)
    client = s3.client("reading S3")
    keys = [key]
    if key.endswith("/"):
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        keys = [item["Key"] for page in pages for item in page.get("Contents", []) if _holds_rows(item["Key"])]
        if not keys:
            raise FileNotFoundError(f"no {', '.join(READABLE)} object below this prefix")
    for number, name in enumerate(sorted(keys)):
        client.download_file(bucket, name, str(folder / f"{number:06d}-{name.rpartition('/')[2]}"))
    return folder


def _from_hub(hub: HubFiles, folder: Path) -> Path:
    load("huggingface_hub", "hub", "reading the hub").snapshot_download(
        hub.repo, repo_type="dataset", revision=hub.revision, allow_patterns=[hub.files], local_dir=folder
    )
    # The library's own bookkeeping lies beside the files, and it is JSON too.
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    if not any(_holds_rows(file.name) for file in folder.rglob("*")):
        raise FileNotFoundError(f"no file {hub.files} at revision {hub.revision}")
    return folder


def _holds_rows(name: str) -> bool:
    return name.endswith(READABLE) and name.rpartition("/")[2] not in DESCRIPTIONS


def _items(path: Path) -> Iterator[Any]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        with load("pyarrow.parquet", "hub", "Parquet").ParquetFile(path) as table:
            for batch in table.iter_batches():
                yield from batch.to_pylist()
    elif name.endswith(".arrow"):
        with load("pyarrow.ipc", "hub", "Arrow").open_stream(str(path)) as stream:
            for batch in stream:
                yield from batch.to_pylist()
    else:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            if name.endswith(".json"):
                listed = orjson.loads(file.read().removeprefix(codecs.BOM_UTF8))
                yield from listed if isinstance(listed, list) else [listed]
            else:
                # Binary lines end at \n only: U+0085 and U+2028 inside a string are text.
                yield from (_line(line, number) for number, line in enumerate(file, 1) if line.strip())


def _line(line: bytes, number: int) -> Any:
    try:
        return parsed(line, number)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
