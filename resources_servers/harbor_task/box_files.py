"""Reads files of a task folder as entries for its box."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path

from rollyard.resources_servers.harbor_task.dockerfile.build import Copy
from rollyard.services.sandbox.shell.records import BoxEntry


def tree(source: Path, target: str, mode: int | None = None) -> Iterator[BoxEntry]:
    """Yield a file, or a folder with its content, under the path `target`. `mode` replaces the files' permissions."""
    if source.is_symlink():
        yield BoxEntry(path=target, kind="link", target=str(source.readlink()))
    elif source.is_dir():
        yield BoxEntry(path=target, kind="folder")
        for child in sorted(source.iterdir()):
            yield from tree(child, posixpath.join(target, child.name), mode)
    else:
        own = 0o755 if source.stat().st_mode & 0o100 else 0o644
        yield BoxEntry(path=target, kind="file", data=source.read_bytes(), mode=own if mode is None else mode)


def copied(step: Copy, context: Path, is_folder: bool) -> list[BoxEntry]:
    """Return what a COPY instruction creates. `is_folder`: whether its target exists as a folder.

    Raises UnsupportedTask if a source does not exist in the folder environment/, or leads out of it.
    """
    entries: list[BoxEntry] = []
    for pattern in step.sources:
        found = _matching(context, pattern)
        if not found:
            raise step.instruction.refuse(f"{pattern} does not exist in environment/")
        into_folder = step.into_folder or is_folder or len(found) > 1
        for source in found:
            if source.is_dir() and not source.is_symlink():  # its content is copied, not the folder itself
                entries += tree(source, step.target, step.mode)
            else:
                real = source.resolve()
                target = posixpath.join(step.target, source.name) if into_folder else step.target
                entries += tree(real, target, step.mode)
    return entries


def _matching(context: Path, pattern: str) -> list[Path]:
    relative = posixpath.normpath(pattern.lstrip("/")) if pattern.strip("/") else "."
    if relative == ".":
        return [context]
    if relative.startswith(".."):
        return []
    found = sorted(context.glob(relative)) if any(sign in relative for sign in "*?[") else [context / relative]
    root = context.resolve()
    return [path for path in found if path.exists() and path.resolve().is_relative_to(root)]
