"""SourceBundle: the project's files as a tar.gz whose bytes depend only on their contents."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rollyard.launchers.sagemaker.project_files import project_files
from rollyard.launchers.sagemaker.secret_files import secret_in
from rollyard.records.errors import OperatorError

_SHOWN = 8


@dataclass(frozen=True)
class SourceBundle:
    """What a job gets of the project."""

    project: Path
    files: tuple[str, ...]
    """Paths relative to the project, sorted."""
    size: int
    """Size of all files together, in bytes."""

    def write(self, target: BinaryIO) -> None:
        """Write the archive. Raises OperatorError if a file has disappeared, OSError if it cannot be read."""
        # No file name, user or time: the same files give the same bytes.
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in self.files:
                path = self.project / name
                entry = tarfile.TarInfo(name)
                if path.is_symlink():
                    entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115 - the text of the link
                    archive.addfile(entry)
                    continue
                with _opened(path, name) as file:
                    status = os.fstat(file.fileno())
                    entry.size = status.st_size
                    entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                    archive.addfile(entry, file)


def make_bundle(project: Path, configs: Sequence[str], include: Sequence[str], max_bytes: int) -> SourceBundle:
    """Select and check the files of a project.

    `configs` (files that the job needs) and the files of `include` are part of it even if git ignores them; `include`
    also allows files that look like secrets. Raises OperatorError if a file looks like a secret, a link leads out of
    the project, or all files together are larger than `max_bytes`.
    """
    for name in include:
        if not (project / name).is_file() or not _is_inside(project, project / name):
            raise OperatorError(f"--include {name}: there is no such file in the project {project}")
    extra = [os.path.normpath(name) for name in (*include, *configs)]
    names = sorted({*project_files(project), *extra})
    allowed = {os.path.normpath(name) for name in include}
    names = [name for name in names if _is_packable(project / name)]
    _check_links(project, names)
    _check_secrets(project, names, allowed)
    sizes = {name: (project / name).lstat().st_size for name in names}
    if (size := sum(sizes.values())) > max_bytes:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        shown = ", ".join(f"{name} ({sizes[name] / 1e6:,.0f} MB)" for name in largest)
        raise OperatorError(
            f"the project's files have {size / 1e6:,.0f} MB, at most {max_bytes / 1e6:,.0f} MB are uploaded. The "
            f"largest are {shown}. Add data to .gitignore and put it into S3, or raise max_source_mb"
        )
    return SourceBundle(project, tuple(names), size)


def _is_packable(path: Path) -> bool:
    """Leave out sockets and pipes, which programs create while they run."""
    return path.is_symlink() or path.is_file()


def _check_links(project: Path, names: Sequence[str]) -> None:
    # A file below a link to a folder, too: git lists tracked files whose folder has been replaced by a link.
    outside = [_with_target(project, name) for name in names if not _is_inside(project, project / name)]
    absolute = [
        name
        for name in names
        if (project / name).is_symlink() and os.path.isabs(os.readlink(project / name))  # noqa: PTH115, PTH117
    ]
    if outside or absolute:
        raise OperatorError(
            "links that lead out of the project or nowhere would be broken in the job: "
            f"{_listed(outside or absolute)}. Replace them by relative links within the project, or add them to "
            ".gitignore"
        )


def _check_secrets(project: Path, names: Sequence[str], allowed: set[str]) -> None:
    found = [f"{name} ({why})" for name in names if name not in allowed and (why := secret_in(project, name))]
    if found:
        raise OperatorError(
            f"these files look like secrets and would be uploaded: {_listed(found)}. Add them to .gitignore, or pass "
            f"--include PATH for each file that the job needs"
        )


def _with_target(project: Path, name: str) -> str:
    path = project / name
    return f"{name} -> {os.readlink(path) if path.is_symlink() else path.resolve()}"  # noqa: PTH115 - the text of the link


def _is_inside(project: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(project.resolve())
    except (OSError, RuntimeError):  # a loop of links; Python 3.13 raises OSError
        return False


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _opened(path: Path, name: str) -> BinaryIO:
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise OperatorError(
            f"{name} was deleted while the source bundle was being written; repeat the command"
        ) from error
    return file


def unpack(archive: BinaryIO, folder: Path) -> None:
    """Unpack a bundle. Raises tarfile.TarError or OperatorError for an entry that leads out of `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive, mode="r:gz") as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:
            _extract_inside(packed, folder)


def _extract_inside(packed: tarfile.TarFile, folder: Path) -> None:
    """Do what the filter `data` does, which Python has since 3.11.4. Debian 12 has 3.11.2."""
    for member in packed:
        target = folder / member.name
        if member.issym():
            end = target.parent / member.linkname
        elif member.islnk():
            end = folder / member.linkname
        else:
            end = target
        if not all(path.resolve().is_relative_to(folder.resolve()) for path in (target, end)) or member.isdev():
            raise OperatorError(
                f"the source bundle contains {member.name}, which leads out of its folder; do not use it"
            )
        packed.extract(member, folder)
