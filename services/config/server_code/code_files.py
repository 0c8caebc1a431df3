"""The files of a folder of code, without what other programs put there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CODE = frozenset({".py", ".pyi", ".pyx", ".so"})
_FOLDERS = frozenset({"__pycache__", "build", "dist", "logs", "mlruns", "node_modules", "results", "tests", "wandb"})
_ENDS = (".pyc", ".log", "~", ".bak", ".orig", ".tmp")


def files_of(folder: Path) -> Iterator[Path]:
    """Every file that may decide what the code does.

    Left out: dot files, caches, virtual environments, tests, logs, results of collections.
    """
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if path.name not in _FOLDERS and path.suffix != ".egg-info" and not (path / "pyvenv.cfg").exists():
                yield from files_of(path)
        elif path.is_file() and not path.name.endswith(_ENDS) and not _is_test(path) and not _is_result(path):
            yield path


def _is_test(path: Path) -> bool:
    return path.suffix == ".py" and (path.stem == "conftest" or path.stem.startswith("test_"))


def _is_result(path: Path) -> bool:
    """One of the files of a collection: its manifest is beside it."""
    stems = [path.stem, *(path.stem.removesuffix(end) for end in ("_failures", "_manifest", "_status"))]
    return path.suffix in (".jsonl", ".json") and any(
        path.with_name(f"{stem}_manifest.json").exists() for stem in stems
    )
