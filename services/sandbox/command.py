"""Builds the command lines that start a zygote: in bubblewrap, or directly if Landlock is used."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.search_path import IMPORT_ROOT
from rollyard.services.sandbox import bubblewrap_entry
from rollyard.services.sandbox.inside.privileges import NOBODY
from rollyard.services.sandbox.python_runtime import PythonRuntime

_INSIDE = Path(__file__).resolve().parent / "inside"
_MOUNT_POINT = "/jail"
_FLAGS = ("-S", "-s", "-P", "-B", "-u", "-W", "ignore")
"""Flags: no site-packages, no working directory on sys.path, no bytecode files, no buffering, no warnings."""
_ZYGOTE = "rollyard.services.sandbox.inside.zygote"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


@dataclass(frozen=True)
class Command:
    """A command to start, with its environment."""

    arguments: list[str]
    environment: dict[str, str]


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap, or None if it is not installed."""
    return shutil.which("bwrap")


def bubblewrap(program: str, python: PythonRuntime) -> Command:
    """Return the command that starts a zygote in its own namespaces, where it sees only a read-only interpreter."""
    files = [*python.files, (str(_INSIDE), f"{_MOUNT_POINT}/rollyard/services/sandbox/inside")]
    before = [program, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    before += ["--unshare-cgroup-try", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "jail"]
    before += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in _environment(python, _MOUNT_POINT).items():
        before += ["--setenv", name, value]
    hidden = [f"{folder}/site-packages" for folder in python.paths if Path(folder, "site-packages").is_dir()]
    after = [word for folder in hidden for word in ("--tmpfs", folder, "--remount-ro", folder)]
    after += [word for device in _DEVICES for word in ("--dev-bind", device, device)]
    after += ["--dir", "/tmp", "--proc", "/proc", "--remount-ro", "/", "--chdir", "/"]
    after += [python.program, *_FLAGS, "-m", _ZYGOTE]
    entry_arguments = {"root": str(IMPORT_ROOT), "files": files, "before": before, "after": after}
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return Command([base, "-I", "-S", bubblewrap_entry.__file__, json.dumps(entry_arguments)], {})


def plain(python: PythonRuntime) -> Command:
    """Return the command that starts a zygote without namespaces. Its children use Landlock and seccomp instead."""
    return Command([python.program, *_FLAGS, "-m", _ZYGOTE], _environment(python, str(IMPORT_ROOT)))


def readable(python: PythonRuntime) -> tuple[str, ...]:
    """Return the paths that must stay readable under Landlock."""
    return (*python.paths, str(_INSIDE), *_DEVICES)


def tree(python: PythonRuntime) -> tuple[tuple[str, str], ...]:
    """Return sources and targets of the files that exist for answers under Landlock, if the others can be hidden."""
    same = (*python.paths, str(_INSIDE), *_DEVICES)
    return tuple(dict.fromkeys([*((path, path) for path in same), *python.files]))


def _environment(python: PythonRuntime, root: str) -> dict[str, str]:
    """Return the zygote's initial environment, which it clears. PYTHONHASHSEED makes set order reproducible."""
    return {"PYTHONPATH": root, "PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": python.library_path, "LC_ALL": "C.UTF-8"}
