"""Runs a command with a container engine and the image `rollyard-test:1`, which has this host's shell and Python.

    python -m tests.external.harbor.engine pytest tests/external/harbor

It uses the engine that is running, else starts a private dockerd, as root (apt-get install docker.io), and ends it. An
engine of its own has no bridge: its containers have the host's network or none. Without dockerd, the command runs all
the same, and tests that need an engine skip.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.boxes import TEST_IMAGE
from tests.support.waiting import deadline_s

_PROGRAMS = (
    *(
        "bash",
        "sh",
        "cat",
        "cmp",
        "ls",
        "mkdir",
        "rm",
        "cp",
        "mv",
        "ln",
        "chmod",
        "touch",
        "test",
        "sleep",
    ),
    *(
        "timeout",
        "env",
        "id",
        "head",
        "tail",
        "wc",
        "sort",
        "cut",
        "grep",
        "sed",
        "tr",
        "stat",
        "kill",
        "tar",
    ),
    *(
        "date",
        "dirname",
        "mkfifo",
        "seq",
        "true",
        "false",
        "python3",
        "xargs",
        "install",
    ),
)
_LIBRARIES = ("libgcc_s.so.1", "libstdc++.so.6", "librt.so.1", "libpthread.so.0", "libdl.so.2", "libutil.so.1")
"""Those that packages of Python need."""
CAN_START = os.getuid() == 0 and all(map(shutil.which, ("dockerd", "docker")))
_LEFT_OUT = {"test", "__pycache__", "idlelib", "tkinter", "lib2to3"}


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the engine ends, too
    with engine() as variables:
        return subprocess.call(sys.argv[1:], env={**os.environ, **variables})


@contextlib.contextmanager
def engine() -> Iterator[dict[str, str]]:
    """Yield the variables with which a client finds the engine."""
    if _answers({}):
        _make_image({})
        yield {}
        return
    if not CAN_START:
        print("no engine is running, and there is no dockerd to start as root: tests with containers skip")
        yield {}
        return
    with private_engine(["dockerd", "--bridge=none"]) as (variables, _):
        yield variables


@contextlib.contextmanager
def private_engine(command: list[str]) -> Iterator[tuple[dict[str, str], subprocess.Popen[bytes]]]:
    """Yield the variables with which a client finds an engine that `command` starts, and its process."""
    with tempfile.TemporaryDirectory(prefix="rollyard-engine-") as folder, Path(folder, "log").open("wb") as log:
        places = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
        network = ["--iptables=false", "--ip-forward=false", "--ip-masq=false"]
        variables = {"DOCKER_HOST": f"unix://{folder}/socket"}
        daemon = subprocess.Popen(
            [*command, *places, *network, "--host", variables["DOCKER_HOST"]],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + deadline_s()
            while not _answers(variables):
                if daemon.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"dockerd did not start: {Path(log.name).read_text()[-1000:]}")
                time.sleep(0.1)
            _make_image(variables)
            yield variables, daemon
        finally:
            daemon.terminate()
            daemon.wait()
            mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
            for mount in reversed([path for path in mounts if path.startswith(f"{folder}/")]):
                subprocess.run(["umount", mount], check=True)


def _answers(variables: dict[str, str]) -> bool:
    try:
        return (
            subprocess.run(["docker", "version"], env={**os.environ, **variables}, capture_output=True).returncode == 0
        )
    except OSError:
        return False


def _make_image(variables: dict[str, str]) -> None:
    command = ["docker", "import", "-", TEST_IMAGE]
    made = subprocess.run(command, input=_archive(), env={**os.environ, **variables}, capture_output=True)
    if made.returncode != 0:
        raise SystemExit(f"the image cannot be made: {made.stderr.decode()}")


def _archive() -> bytes:
    """Pack this host's programs with their libraries, for a system whose /bin and /lib are links into /usr."""
    files: set[str] = set()
    library = Path(
        subprocess.check_output(["/usr/bin/python3", "-c", "import os; print(os.__file__)"], text=True)
    ).parent
    programs = [str(path) for name in _LIBRARIES for path in Path("/usr/lib").glob(f"*/{name}")]
    programs += [str(path) for path in (library / "lib-dynload").glob("*.so")]
    for name in _PROGRAMS:
        if (program := shutil.which(name, path="/usr/bin:/bin")) is None:
            raise SystemExit(f"this host has no program {name} in /usr/bin")
        programs.append(program)
    for program in programs:
        real = os.path.realpath(program)
        needed = subprocess.run(["ldd", real], capture_output=True, text=True).stdout.split()
        for path in (program, real, *(word for word in needed if word.startswith("/"))):
            files |= {path, os.path.realpath(path)}
    library = Path(
        subprocess.check_output(["/usr/bin/python3", "-c", "import os; print(os.__file__)"], text=True)
    ).parent
    paths = {file if file.startswith("/usr/") else f"/usr{file}" for file in files}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, mode in (("tmp", 0o1777), ("root", 0o700), ("etc", 0o755), ("usr", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            archive.addfile(folder)
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
        for path in sorted(path for path in paths if not path.startswith(f"{library}/")):
            archive.add(path, path[1:])
        archive.add(library, str(library)[1:], filter=_wanted)
    return packed.getvalue()


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = member.name.rpartition("/")[2]
    return None if name in _LEFT_OUT or name.startswith("config-") else member


if __name__ == "__main__":
    sys.exit(main())
