"""Isolation modes, and the trials that test them on this host.

The main trial includes positive controls, because a jail in which nothing works would also appear to isolate answers.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.data_files import IMPORT_ROOT
from rollyard.services.sandbox import bubblewrap_entry
from rollyard.services.sandbox.inside.jail_plan import Plan
from rollyard.services.sandbox.inside.privileges import NOBODY
from rollyard.services.sandbox.python_runtime import PythonRuntime
from rollyard.services.sandbox.records import Layers, SandboxLimits, Trial
from rollyard.services.sandbox.zygote_link import Command, KernelFeatures

MIB = 1 << 20
_INSIDE = Path(__file__).resolve().parent / "inside"
_MOUNT_POINT = "/jail"
_FLAGS = ("-S", "-s", "-P", "-B", "-u", "-W", "ignore")
"""Flags: no site-packages, no working directory on sys.path, no bytecode files, no buffering, no warnings."""
_ZYGOTE = "rollyard.services.sandbox.inside.zygote"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


@dataclass(frozen=True)
class IsolationMode:
    name: str
    command: Command
    namespaces: bool
    landlock: bool
    seccomp: bool
    isolates: bool = True
    """False if answers run as ordinary processes of this user."""

    def plan(self, limits: SandboxLimits, features: KernelFeatures, python: PythonRuntime) -> Plan:
        return Plan(
            namespaces=self.namespaces,
            landlock=self.landlock and features.landlock > 0,
            seccomp=self.seccomp and features.seccomp,
            readable=(*python.paths, str(_INSIDE), *_DEVICES),
            tree=tree(python) if self.landlock and features.private_tree else (),
            cpu_s=limits.cpu_s,
            wall_s=limits.wall_s,
            memory=limits.memory_mb * MIB,
            processes=limits.processes,
            file_size=limits.file_size_mb * MIB,
            open_files=limits.open_files,
            tmp_size=limits.tmp_mb * MIB,
            output=limits.output_kb * 1024,
        )

    def lacks(self, features: KernelFeatures) -> str:
        """Return why the mode cannot isolate answers on this kernel, or an empty string if it can."""
        if self.landlock and not features.landlock:
            return "the kernel has no Landlock"
        if self.landlock and not features.seccomp:
            return "the kernel has no seccomp, and Landlock alone does not restrict sockets and signals"
        return ""

    def layers(self, features: KernelFeatures, refused: tuple[str, ...]) -> Layers:
        """Return the enforced layers. `refused`: the better modes that failed, with reasons."""
        found = ["limits on CPU, memory, files and output", "deadline for the whole process tree", "empty environment"]
        found += ["no capabilities", "no new privileges"] if self.isolates else []
        missing = list(refused)
        if self.namespaces:
            found += [
                "user, process, mount, IPC, network and host name namespaces",
                "only a read-only Python interpreter visible",
            ]
            found += ["private /tmp", "limit on processes"]
        if self.landlock:
            found += [f"Landlock {features.landlock}: only the Python interpreter readable"]
            if features.private_tree:
                found += ["mount namespace: the host's files do not exist"]
            else:
                missing += ["mount namespace (whether files exist, their sizes and times can be seen)"]
            found += ["no child processes, signals or changes to files", "bound on threads"]
            missing += ["namespaces", "private /tmp (no file can be written)"]
        if self.seccomp and features.seccomp:
            found += ["seccomp"]
        elif self.isolates:
            missing += ["seccomp (not supported by the kernel)"]
        return Layers(mode=self.name, in_force=tuple(found), missing=tuple(missing))


def modes(python: PythonRuntime, bubblewrap: str | None, *, unsandboxed: bool) -> list[IsolationMode]:
    """Return the modes to try, best first. `bubblewrap`: path of the bubblewrap program, if it is installed."""
    found = []
    if bubblewrap is not None:
        wrapped = bubblewrap_command(bubblewrap, python)
        found.append(IsolationMode("bubblewrap", wrapped, namespaces=True, landlock=False, seccomp=True))
    plain = plain_command(python)
    found.append(IsolationMode("landlock", plain, namespaces=False, landlock=True, seccomp=True))
    if unsandboxed:
        found.append(IsolationMode("none", plain, namespaces=False, landlock=False, seccomp=False, isolates=False))
    return found


def bubblewrap_command(program: str, python: PythonRuntime) -> Command:
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


def plain_command(python: PythonRuntime) -> Command:
    """Return the command that starts a zygote without namespaces. Its children use Landlock and seccomp instead."""
    return Command([python.program, *_FLAGS, "-m", _ZYGOTE], _environment(python, str(IMPORT_ROOT)))


def tree(python: PythonRuntime) -> tuple[tuple[str, str], ...]:
    """Return sources and targets of the files that exist for answers under Landlock, if the others can be hidden."""
    same = (*python.paths, str(_INSIDE), *_DEVICES)
    return tuple(dict.fromkeys([*((path, path) for path in same), *python.files]))


def _environment(python: PythonRuntime, root: str) -> dict[str, str]:
    """Return the zygote's initial environment, which it clears. PYTHONHASHSEED makes set order reproducible."""
    return {"PYTHONPATH": root, "PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": python.library_path, "LC_ALL": "C.UTF-8"}


CONTROL = Trial(
    code="""
import colorsys, os
def doubled(x):
    return 2 * x
def loaded():
    return colorsys.rgb_to_hsv(0, 0, 1)[2]
def tried(name):
    try:
        if name == "files":
            return open("/etc/passwd").read()
        if name == "folders":
            return os.listdir("/home")
        if name == "network":
            import socket
            return str(socket.create_connection(("127.0.0.1", 1), 0.2))
        if name == "write":
            return str(open("/var/tmp/rollyard-escaped", "w"))
        if name == "signal":
            return str(os.kill(os.getppid(), 0) if os.getppid() > 2 else os.listdir("/proc/1"))
    except ConnectionRefusedError:
        return "reached"
    except OSError:
        return None
    return "done"
""",
    names=("doubled", "loaded", "tried"),
    tests=(
        "assert doubled(21) == 42",
        "assert loaded() == 1",
        *(f"assert tried({name!r}) is None" for name in ("files", "folders", "network", "write", "signal")),
    ),
)
"""The first two tests check that the jail works, the others that it isolates answers."""
WORKS = CONTROL.model_copy(update={"tests": CONTROL.tests[:2]})
"""`CONTROL` with only its first two tests, for a mode that does not isolate."""
REFUTED = Trial(code="def doubled(x):\n    return 2 * x", names=("doubled",), tests=("assert doubled(21) == 41",))
"""A trial that must be graded as wrong, which proves that the tests are evaluated."""
