"""Loads a task folder and refuses links that lead outside, and everything else that cannot be played safely."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.resources_servers.harbor_task.dockerfile.build import Build, absolute, is_read_only, read_build
from rollyard.resources_servers.harbor_task.dockerfile.images import HostImage
from rollyard.resources_servers.harbor_task.dockerfile.network import network_command
from rollyard.resources_servers.harbor_task.task_config import TaskConfig, read_config
from rollyard.resources_servers.harbor_task.unsupported import UnsupportedTask

CONFIG, INSTRUCTION, ENVIRONMENT, TESTS, SOLUTION = "task.toml", "instruction.md", "environment", "tests", "solution"
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml", "singularity-compose.yaml")
MAX_BYTES = 256 << 20
"""Maximum size of a task folder, which is read into memory."""


@dataclass(frozen=True)
class TaskFolder:
    """A task that can be played."""

    name: str
    path: Path
    instruction: str
    config: TaskConfig
    build: Build
    digest: str
    """Hash of all files, to notice rows that belong to another version of the task."""


def is_task(path: Path) -> bool:
    """Return whether the folder is meant to be a task."""
    return os.path.lexists(path / CONFIG)


def load_folder(path: Path, host: HostImage, accepted: Sequence[str]) -> TaskFolder:
    """Load a task folder. Raises UnsupportedTask with the file, line or key that cannot be provided."""
    try:
        digest = _check_tree(path)
        config = read_config(_text(path / CONFIG))
        instruction = _text(path / INSTRUCTION).strip()
        build = _build(path, config, host, accepted)
        tests = _text(path / TESTS / "test.sh")
    except OSError as error:
        raise UnsupportedTask(f"{error.filename or path} cannot be read: {error.strerror}") from error
    if not instruction:
        raise UnsupportedTask(f"{INSTRUCTION} is empty")
    if found := network_command(tests):
        raise UnsupportedTask(
            f"{TESTS}/test.sh line {found[0]}: `{found[1]}` needs a network, which a box does not have"
        )
    return TaskFolder(path.name, path, instruction, config, build, digest)


def _build(path: Path, config: TaskConfig, host: HostImage, accepted: Sequence[str]) -> Build:
    folder = path / ENVIRONMENT
    for name in _COMPOSE:
        if (folder / name).exists():
            raise UnsupportedTask(f"{ENVIRONMENT}/{name}: several containers are not supported")
    if (folder / ".dockerignore").exists():
        raise UnsupportedTask(f"{ENVIRONMENT}/.dockerignore is not supported: remove the files that it excludes")
    dockerfile = folder / "Dockerfile"
    if not dockerfile.exists():
        raise UnsupportedTask(f"{ENVIRONMENT}/Dockerfile is missing; prebuilt images cannot be started")
    build = read_build(_text(dockerfile), host, accepted)
    build.env |= config.environment.env
    if workdir := config.environment.workdir:
        build.workdir = _workdir(workdir)
        build.folders.append(build.workdir)
    return build


def _workdir(path: str) -> str:
    if not path.startswith("/"):
        raise UnsupportedTask(f"{CONFIG}: environment.workdir = {path!r}: expected an absolute path")
    found = absolute(path)
    if is_read_only(found):
        raise UnsupportedTask(f"{CONFIG}: environment.workdir = {path!r}: {found} is read-only in a box")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise UnsupportedTask(f"{path.name} is missing in {path.parent.name}") from error
    except UnicodeDecodeError as error:
        raise UnsupportedTask(f"{path.name} is not UTF-8 text: {error}") from error


def _check_tree(path: Path) -> str:
    """Return a hash of the task's files. Raises UnsupportedTask for a link that leads outside its part of the folder.

    A link from environment/ to tests/ would show the tests to the model, so it is refused as well.
    """
    found, size = hashlib.sha256(), 0
    for part in (CONFIG, INSTRUCTION, ENVIRONMENT, TESTS, SOLUTION):
        if not os.path.lexists(path / part):
            continue
        if (path / part).is_symlink():
            raise UnsupportedTask(f"{part} is a link; expected the {'file' if '.' in part else 'folder'} itself")
        for name, kind, content in _entries(path, part):
            size += len(content)
            if size > MAX_BYTES:
                raise UnsupportedTask(f"the files of the task are larger than {MAX_BYTES >> 20} MiB")
            for piece in (name.encode(errors="surrogateescape"), kind.encode(), content):
                found.update(len(piece).to_bytes(8, "big") + piece)
    return found.hexdigest()


def _entries(path: Path, part: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the kind and the content of every file and link of a part, sorted by name."""
    root = (path / part).resolve()
    for file in sorted([path / part, *(path / part).rglob("*")]):
        name, mode = file.relative_to(path).as_posix(), file.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = file.readlink()
            # realpath, because resolve() raises RuntimeError for links that form a loop (before Python 3.13)
            if target.is_absolute() or not Path(os.path.realpath(file)).is_relative_to(root):
                raise UnsupportedTask(f"{name} is a link to {target}, outside {part}/")
            yield name, "link", os.fsencode(target)
        elif stat.S_ISREG(mode):
            if file.stat().st_size > MAX_BYTES:
                raise UnsupportedTask(f"{name} is larger than {MAX_BYTES >> 20} MiB")
            yield name, f"file {mode & 0o111:o}", file.read_bytes()
        elif not stat.S_ISDIR(mode):
            raise UnsupportedTask(f"{name} is neither a file, a folder nor a link")
