"""Lists the files in a code folder, except for files that other programs create in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CODE = frozenset({".py", ".pyi", ".pyx", ".so"})
_EXCLUDED_FOLDERS = frozenset(
    {"__pycache__", "build", "dist", "logs", "mlruns", "node_modules", "results", "tests", "wandb"}
)
_EXCLUDED_SUFFIXES = (".pyc", ".log", "~", ".bak", ".orig", ".tmp")


def files_of(folder: Path) -> Iterator[Path]:
    """Yield every file that may affect what the code does.

    Excluded: dot files, caches, virtual environments, tests, logs and the results of collections.
    """
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if _is_included(path):
                yield from files_of(path)
        elif (
            path.is_file()
            and not path.name.endswith(_EXCLUDED_SUFFIXES)
            and not _is_test(path)
            and not _is_result(path)
        ):
            yield path


def _is_included(folder: Path) -> bool:
    return (
        folder.name not in _EXCLUDED_FOLDERS and folder.suffix != ".egg-info" and not (folder / "pyvenv.cfg").exists()
    )


def _is_test(path: Path) -> bool:
    return path.suffix == ".py" and (path.stem == "conftest" or path.stem.startswith("test_"))


def _is_result(path: Path) -> bool:
    """Return True for an output file of a collection, which is recognized by the manifest next to it."""
    stems = [path.stem, *(path.stem.removesuffix(end) for end in ("_failures", "_manifest", "_status", "_notes"))]
    return path.suffix in (".jsonl", ".json") and any(
        path.with_name(f"{stem}_manifest.json").exists() for stem in stems
    )
