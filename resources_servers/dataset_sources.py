"""Reads the source rows for `prepare.py` scripts from a local file, S3 or the Hugging Face hub, tried in this order.

Each location may be a single file or a dataset with splits and subsets; `services/datasets/splits.py` selects one of
them by the same rules everywhere. Downloads go to a temporary folder that is removed afterwards, and the output is
written atomically, so partial data is never used. Files may be .jsonl or .json (a list), optionally compressed,
.parquet, .arrow, .csv or .tsv.
S3 needs the `aws` extra; the hub, Parquet and Arrow need the `hub` extra; .zst files need `zstd`.

    with rows_from(DataLocations(local=Path("clone"), hub=Hub("openai/gsm8k")), SplitSelection(split="test")) as rows:
        write_rows(Path("out.jsonl"), (made(row) for row in rows))
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import orjson

from rollyard.records import s3
from rollyard.records.data_files import DELIMITED, STATE, lines_of, sidecar_contents
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import ParsedLine, hand_over, iter_jsonl, replace, with_offsets
from rollyard.records.optional import load
from rollyard.records.rollout_file import check_output
from rollyard.records.rows import exact_objects
from rollyard.records.script import ScriptParser, not_negative, positive
from rollyard.records.strict_json import load_exact
from rollyard.records.terminal import plain
from rollyard.records.types import Json, json_kind
from rollyard.services.datasets import splits

DESCRIPTIONS = ("config.json", "dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")
"""JSON files in hub datasets and in `save_to_disk` folders that contain metadata instead of rows."""
ANY = splits.SplitSelection()
EXTENSIONS = ", ".join((*splits.READABLE, *DELIMITED))


@dataclass(frozen=True)
class Hub:
    repo: str
    revision: str = "main"


@dataclass(frozen=True)
class DataLocations:
    """Locations to try in this order. The first one that has rows is used; earlier failures are reported."""

    local: Path | None = None
    """A file or a folder."""
    s3: str | None = None
    """The URL `s3://bucket/key` of a file, or a prefix that ends with `/`."""
    hub: Hub | None = None


def _print_line(line: str) -> None:
    print(plain(line), file=sys.stderr)


@contextlib.contextmanager
def rows_from(
    locations: DataLocations, selection: splits.SplitSelection = ANY, report: Callable[[str], None] = _print_line
) -> Iterator[RawRows]:
    """Read the rows from the first usable location.

    If there is none, raises OperatorError or RunError with a reason for each location.
    """
    with tempfile.TemporaryDirectory(prefix="rollyard-rows-") as folder:
        yield RawRows(_fetched(locations, selection, Path(folder), report))


def read_rows(path: Path, selection: splits.SplitSelection = ANY) -> Iterator[Json]:
    """Read the rows from a file, or those of one split and subset from a folder.

    Raises OperatorError if no rows can be read or if several files match equally well.
    """
    try:
        files = _from_local(path, selection)
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror or error}") from error
    yield from RawRows(files)


def write_rows(path: Path, rows: Iterable[Json]) -> int:
    """Write the rows as JSON Lines and return their number. If the iterator raises an error, an existing file is kept.

    Raises OperatorError if there are no rows.
    """
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


class PrepareParser(ScriptParser):
    def __init__(self, description: str | None, *, forms: Sequence[str], system: str, split: str | None = None) -> None:
        """`forms`: the prompt formats, the default first. `split`: the default split; None if rows select theirs."""
        super().__init__(description=description)
        add = self.add_argument
        add("--output", type=Path, required=True, help="the JSONL file to write")
        add("--local", type=Path, help="file or folder to try first, such as a clone of the hub's repository")
        add("--s3", help="s3://bucket/key, or a prefix that ends with /; tried after --local")
        add("--hub", help="dataset on the Hugging Face hub with the same fields, instead of the original")
        add("--offline", action="store_true", help="do not fall back to the Hugging Face hub")
        add("--limit", type=positive, help="maximum number of rows to write (default: all)")
        add("--subset", "--config", help=f"subset to read if the dataset has several; or {splits.ALL}")
        add("--form", choices=tuple(forms), default=forms[0], help=f"prompt format (default {forms[0]})")
        add("--system-prompt", default=system, help="system prompt for --form chat; may be empty")
        if split is not None:
            add("--split", help=f"split to read, or {splits.ALL} (default {split})")
        self._shots: Mapping[str, int] = {}

    def add_shots(self, defaults: Mapping[str, int], *, sampled: bool) -> None:
        """Add the options of few-shot examples. `defaults`: the number of examples by form; others have none."""
        self._shots = defaults
        described = ", ".join(f"{count} for {form}" for form, count in defaults.items())
        self.add_argument("--shots", type=not_negative, help=f"few-shot examples (default: {described}, otherwise 0)")
        if sampled:
            about = "rows to sample each problem's examples from; lm_eval uses the train split"
            self.add_argument("--shots-from", type=Path, help=about)
            self.add_argument("--seed", type=int, default=42, help="sampling seed, like lm_eval's (default 42)")

    def shots(self, options: argparse.Namespace, fixed: Collection[str]) -> int:
        """Return the number of examples. Only the forms in `fixed` have some without --shots-from."""
        count = self._shots.get(options.form, 0) if options.shots is None else options.shots
        if options.form == "chat" and count:
            self.error("--shots requires another --form than chat")
        if count and options.form not in fixed and not options.shots_from:
            self.error(f"--shots with --form {options.form} requires --shots-from with the rows to sample from")
        return int(count)


def prepare(
    options: argparse.Namespace,
    hub: str,
    make: Callable[[int, Json], Json | None],
    *,
    split: str | None = None,
    subset: str | None = None,
) -> None:
    """Write the row that `make` builds from each source row and its number. If `make` returns None, the row is skipped.

    `split`, `subset`: those to read if the options name none. Raises OperatorError if a source is missing or has
    unexpected rows, RunError if a download failed.
    """
    check_output(options.output, [options.local] if options.local else ())
    wanted = splits.SplitSelection(getattr(options, "split", None), options.subset, split, subset)
    source = None if options.offline else Hub(options.hub or hub)
    with rows_from(DataLocations(options.local, options.s3, source), wanted) as rows:
        made = (row for row in _made(rows, make) if row is not None)
        count = write_rows(options.output, islice(made, options.limit))
    print(f"{count} rows -> {options.output}")


def _made(rows: RawRows, make: Callable[[int, Json], Json | None]) -> Iterator[Json | None]:
    for number, row in enumerate(rows):
        try:
            yield make(number, row)
        except (KeyError, TypeError, ValueError) as error:
            found = ", ".join(sorted(row)) or "none"
            why = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise OperatorError(f"row {number} of {rows.file} cannot be used: {why} (fields found: {found})") from error


class RawRows:
    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.file: Path | None = None
        """The file that contains the last row read."""

    def __iter__(self) -> Iterator[Json]:
        """Raises OperatorError if a file is unreadable or a row is not an object."""
        for file in self._files:
            for row in _objects(file):
                self.file = file
                yield row


def _objects(file: Path) -> Iterator[Json]:
    """Yield the rows of a file.

    As on the Hugging Face hub, a .json file may contain a list of rows, a single row, or JSON Lines.
    """
    if _has_lines(file):
        yield from (line.value for line in exact_objects(file))
        return
    text = b"".join(lines_of(file)).removeprefix(codecs.BOM_UTF8)
    try:
        content = load_exact(text)
    except ValueError as error:
        raise OperatorError(f"{file} is not valid JSON: {error}") from error
    for number, row in enumerate(content if isinstance(content, list) else [content], 1):
        if not isinstance(row, dict):
            raise OperatorError(f"{file}: row {number} is {json_kind(row)}; expected an object")
        yield row


def _has_lines(file: Path) -> bool:
    """Return whether to read the file line by line: it is not a .json file, or its first line is a complete row."""
    suffix = file.name.removeprefix(splits.stem_of(file.name))
    if suffix.startswith(".jsonl") or not suffix.startswith(".json"):
        return True
    first = next(iter_jsonl(with_offsets(lines_of(file)), hand_over), None)
    return isinstance(first, ParsedLine)


def _fetched(
    locations: DataLocations, selection: splits.SplitSelection, folder: Path, report: Callable[[str], None]
) -> list[Path]:
    sources: list[tuple[str, Callable[[Path], list[Path]]]] = []
    if locations.local is not None:
        local = locations.local
        sources.append((f"local file {local}", lambda _: _from_local(local, selection)))
    if locations.s3 is not None:
        sources.append((locations.s3, partial(_from_s3, locations.s3, selection)))
    if locations.hub is not None:
        sources.append((f"Hugging Face dataset {locations.hub.repo}", partial(_from_hub, locations.hub, selection)))
    reasons: list[str] = []
    configuration_error = not sources
    for number, (name, fetch) in enumerate(sources):
        try:
            target = folder / str(number)
            target.mkdir()
            return fetch(target)
        except splits.AmbiguousFiles:
            raise  # the rows exist here, so another location must not replace them
        except Exception as error:  # libraries raise their own errors; report the reason and try the next location
            reasons.append(f"{name}: {error}")
            configuration_error = configuration_error or isinstance(error, OperatorError | FileNotFoundError)
            if number + 1 < len(sources):
                report(f"{reasons[-1]}; trying {sources[number + 1][0]} next")
    # The operator must fix a location that does not exist; a failed download may succeed the next time.
    raise (OperatorError if configuration_error else RunError)(
        "no rows found. " + ("; ".join(reasons) or "No location was given: pass --local or --s3")
    )


def _from_local(path: Path, selection: splits.SplitSelection) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError("no such file or folder")
        splits.check_file(str(path), selection)
        return [path]
    # `_with_rows` skips hidden folders, in which downloaders keep metadata.
    found = _with_rows(file.relative_to(path).as_posix() for file in path.rglob("*"))
    if not found:
        raise OperatorError(f"{path} contains no file with one of the extensions {EXTENSIONS}")
    if STATE in (file.name for file in path.iterdir()):
        return [path / name for name in found]
    card = path / splits.CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    return [path / name for name in splits.select_files(str(path), found, text, selection)]


def _from_s3(address: str, selection: splits.SplitSelection, folder: Path) -> list[Path]:
    bucket, key = s3.split(address)
    client = s3.client("reading S3")
    if not key.endswith("/"):
        splits.check_file(key, selection)
        names = [key.rpartition("/")[2]]
        key = key.removesuffix(names[0])
    else:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        objects = [item["Key"].removeprefix(key) for page in pages for item in page.get("Contents", [])]
        found = _with_rows(objects)
        if not found:
            reason = f"no object with this prefix has one of the extensions {EXTENSIONS}"
            raise FileNotFoundError(reason)
        card = s3.read_text(address + splits.CARD) if splits.CARD in objects else ""
        # A folder that save_to_disk wrote is one split, whatever the names of its files.
        names = found if STATE in objects else splits.select_files(address, found, card, selection)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        client.download_file(bucket, key + name, str(folder / name))
    return [folder / name for name in names]


def _from_hub(hub: Hub, selection: splits.SplitSelection, folder: Path) -> list[Path]:
    library = load("huggingface_hub", "hub", "reading the hub")
    info = library.HfApi().dataset_info(hub.repo, revision=hub.revision)
    files = [file.rfilename for file in info.siblings or ()]

    def download(name: str) -> Path:
        return Path(library.hf_hub_download(hub.repo, name, repo_type="dataset", revision=info.sha, local_dir=folder))

    found = _with_rows(files)
    if not found:
        reason = f"revision {hub.revision} has no file with one of the extensions {EXTENSIONS}"
        raise FileNotFoundError(reason)
    card = download(splits.CARD).read_text(encoding="utf-8", errors="replace") if splits.CARD in files else ""
    return [download(name) for name in splits.select_files(hub.repo, found, card, selection)]


def _with_rows(names: Iterable[str]) -> list[str]:
    """Return the paths of files that may contain rows. The paths are relative to the dataset's folder."""
    known = set(names)
    found = [
        name
        for name in sorted(known)
        if name.rpartition("/")[2] not in DESCRIPTIONS
        and not any(part.startswith((".", "__")) for part in name.split("/"))
        and not sidecar_contents(name, known.__contains__)
    ]
    # Next to rows in another format, a CSV file is usually something else, such as statistics.
    return [name for name in found if name.endswith(splits.READABLE)] or [
        name for name in found if name.endswith(DELIMITED)
    ]
