"""Rollout files as the command line names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rollyard.services.datasets.data_files import is_plain
from rollyard.services.errors import OperatorError
from rollyard.services.rollouts.store import StorePaths


def named_files(paths: Sequence[Path], names: Sequence[str]) -> list[tuple[str, Path]]:
    """Name and path of each: as given, else the shortest ends of the paths that tell them apart.

    Raises OperatorError.
    """
    if not paths:
        raise OperatorError("no rollout file given; expected +jsonl_fpath=[results/rollouts.jsonl]")
    for path in paths:
        if not path.is_file():
            raise OperatorError(f"{str(path)!r} is not a file; expected the output of ng_collect_rollouts")
        if not _is_plain(path):
            raise OperatorError(
                f"{str(path)!r} is compressed or a table; expected rollouts as ng_collect_rollouts wrote them. "
                "Unpack it first"
            )
    if names and len(names) != len(paths):
        raise OperatorError(f"{len(names)} names for {len(paths)} files; expected one each")
    if len(set(names)) < len(names):
        raise OperatorError(f"names are {list(names)}; expected all different")
    return list(zip(names or _ends(paths), paths, strict=True))


def _is_plain(path: Path) -> bool:
    try:
        return is_plain(path)
    except OSError as error:
        raise OperatorError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _ends(paths: Sequence[Path]) -> list[str]:
    whole = [path.absolute().with_suffix("").parts for path in paths]
    for length in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-length:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    raise OperatorError(f"a file is given twice: {', '.join(map(str, paths))}")


def check_output(path: Path, read: Iterable[Path] = ()) -> None:
    """Make the folder of an output. Raises OperatorError where writing would destroy what is read, or rollouts."""
    if path.is_dir():
        raise OperatorError(f"{path} is a folder; expected a file to write")
    if path.exists() and path.suffix == ".jsonl" and StorePaths(path).manifest.exists():
        raise OperatorError(
            f"{path} holds the rollouts of a collection and would be written over; choose another output"
        )
    if path.resolve() in {one.resolve() for one in read}:
        raise OperatorError(f"{path} is read and would be written over; choose another output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"cannot create the folder of {path}: {error.strerror}") from error
