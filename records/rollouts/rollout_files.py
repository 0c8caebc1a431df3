"""Checks and names the rollout files passed on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rollyard.records.datasets.data_files import is_plain
from rollyard.records.errors import OperatorError
from rollyard.records.io.rollout_paths import RolloutPaths


def named_files(paths: Sequence[Path], names: Sequence[str]) -> list[tuple[str, Path]]:
    """Return the name and path of each file. Names default to the shortest distinct path endings.

    Raises OperatorError if a file is not a rollout file, or if the names do not match the files.
    """
    if not paths:
        raise OperatorError("no rollout file given; expected, for example, results/rollouts.jsonl")
    for path in paths:
        if not path.is_file():
            raise OperatorError(f"{str(path)!r} is not a file; expected the output of ng_collect_rollouts")
        if not _is_plain(path):
            raise OperatorError(
                f"{str(path)!r} is compressed or a table; expected JSON Lines, as written by ng_collect_rollouts. "
                "Decompress or convert it first"
            )
    if names and len(names) != len(paths):
        raise OperatorError(f"{len(names)} names for {len(paths)} files; expected one name per file")
    if len(set(names)) < len(names):
        raise OperatorError(f"the names {list(names)} are not unique; expected a different name for each file")
    return list(zip(names or _distinct_endings(paths), paths, strict=True))


def _is_plain(path: Path) -> bool:
    try:
        return is_plain(path)
    except OSError as error:
        raise OperatorError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _distinct_endings(paths: Sequence[Path]) -> list[str]:
    all_parts = [path.absolute().with_suffix("").parts for path in paths]
    for length in range(1, max(map(len, all_parts)) + 1):
        names = ["/".join(parts[-length:]) for parts in all_parts]
        if len(set(names)) == len(names):
            return names
    raise OperatorError(f"a file is listed more than once: {', '.join(map(str, paths))}")


def check_output(path: Path, read: Iterable[Path] = ()) -> None:
    """Create the folder of an output file. Raises OperatorError if writing would overwrite an input or rollouts."""
    if path.is_dir():
        raise OperatorError(f"{path} is a folder; expected a file to write")
    if path.exists() and path.suffix == ".jsonl" and RolloutPaths(path).manifest.exists():
        raise OperatorError(
            f"{path} contains the rollouts of a collection and would be overwritten; choose a different output"
        )
    if path.resolve() in {file.resolve() for file in read}:
        raise OperatorError(f"{path} is an input file and would be overwritten; choose a different output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"cannot create the parent folder of {path}: {error.strerror}") from error
