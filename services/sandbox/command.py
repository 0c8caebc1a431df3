"""The command lines that start a zygote: in bubblewrap, or plainly where Landlock has to do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rollyard.services.io.search_path import IMPORT_ROOT
from rollyard.services.sandbox import bubblewrap_entry
from rollyard.services.sandbox.inside.privileges import NOBODY
from rollyard.services.sandbox.python_runtime import PythonRuntime

_INSIDE = Path(__file__).resolve().parent / "inside"
_SEEN_AT = "/jail"
_FLAGS = ("-S", "-s", "-P", "-B", "-u", "-W", "ignore")
"""No site-packages, no folder of the caller, no files written, no buffering, no warnings."""
_ZYGOTE = "rollyard.services.sandbox.inside.zygote"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


@dataclass(frozen=True)
class Command:
    """A process to start."""

    words: list[str]
    environment: dict[str, str]


def find_bubblewrap() -> str | None:
    """The program, if it is installed."""
    return shutil.which("bwrap")


def bubblewrap(program: str, python: PythonRuntime) -> Command:
    """A zygote in namespaces of its own, with the Python and nothing else in view, all of it read-only."""
    files = [*python.files, (str(_INSIDE), f"{_SEEN_AT}/rollyard/services/sandbox/inside")]
    before = [program, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    before += ["--unshare-cgroup-try", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "jail"]
    before += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in _environment(python, _SEEN_AT).items():
        before += ["--setenv", name, value]
    hidden = [f"{folder}/site-packages" for folder in python.places if Path(folder, "site-packages").is_dir()]
    after = [word for folder in hidden for word in ("--tmpfs", folder, "--remount-ro", folder)]
    after += [word for device in _DEVICES for word in ("--dev-bind", device, device)]
    after += ["--dir", "/tmp", "--proc", "/proc", "--remount-ro", "/", "--chdir", "/"]
    after += [python.program, *_FLAGS, "-m", _ZYGOTE]
    told = {"root": str(IMPORT_ROOT), "files": files, "before": before, "after": after}
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return Command([base, "-I", "-S", bubblewrap_entry.__file__, json.dumps(told)], {})


def plain(python: PythonRuntime) -> Command:
    """A zygote without namespaces: what it forks is locked in by Landlock and seccomp."""
    return Command([python.program, *_FLAGS, "-m", _ZYGOTE], _environment(python, str(IMPORT_ROOT)))


def readable(python: PythonRuntime) -> tuple[str, ...]:
    """What Landlock has to leave in view."""
    return (*python.places, str(_INSIDE), *_DEVICES)


def _environment(python: PythonRuntime, root: str) -> dict[str, str]:
    """For the zygote alone, which clears it: sets come in the same order on every day."""
    return {"PYTHONPATH": root, "PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": python.library_path, "LC_ALL": "C.UTF-8"}
