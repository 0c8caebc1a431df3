"""Finds the files of a Python interpreter: its program, standard library and shared libraries."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rollyard.records.errors import OperatorError

_INSPECT = """
import json, os, re, sys, sysconfig
for folder in sys.path:
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.endswith(".so"):
            try:
                __import__(name.partition(".")[0])
            except BaseException:
                pass
def both(path):  # the path as given, and without links: the program, started by its real path, looks there
    return path, os.path.realpath(path)
mapped = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "/" in line}
print(json.dumps({
    "program": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "library": sorted({path for kind in ("stdlib", "platstdlib") for path in both(sysconfig.get_path(kind))}),
    "mapped": sorted(path for path in mapped if re.search(r"[.]so([.]|$)", path)),
}))
"""


@dataclass(frozen=True)
class PythonRuntime:
    """An interpreter and the files that must be visible for it to run."""

    program: str
    files: tuple[tuple[str, str], ...]
    """Pairs of a path on the host and the corresponding path in the jail."""
    library_path: str
    """Value of LD_LIBRARY_PATH: the folders that contain its shared libraries."""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted({source for source, _ in self.files}))


@lru_cache
def find_python(program: str | None = None) -> PythonRuntime:
    """Inspect the interpreter `program` (default: the current one). Raises OperatorError if it cannot be used."""
    interpreter = program or str(getattr(sys, "_base_executable", sys.executable))
    interpreter = str(Path(interpreter).absolute()) if os.sep in interpreter else interpreter
    try:
        # -S, -s, -P and an empty working directory hide everything except the standard library.
        with tempfile.TemporaryDirectory(prefix="rollyard-python-") as empty:
            command = [interpreter, "-S", "-s", "-P", "-c", _INSPECT]
            done = subprocess.run(command, cwd=empty, env={}, capture_output=True, check=True, timeout=60)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise OperatorError(
            f"the sandbox cannot use the Python interpreter {interpreter}: {error}. "
            "Choose a different one with sandbox_python"
        ) from error
    files = {(found["program"], found["program"]), *((folder, folder) for folder in found["library"])}
    library_prefixes = tuple(f"{folder}/" for folder in found["library"])
    folders = []
    for path in found["mapped"]:
        if not path.startswith(library_prefixes):
            folders.append(str(Path(path).parent))
            files |= {(path, name) for name in _names_of(Path(path))}
    if (loader := loader_of(Path(found["program"]))) is not None:
        files.add((str(loader.resolve()), str(loader)))
    return PythonRuntime(
        found["program"], tuple(sorted(files, key=lambda pair: pair[1])), ":".join(sorted(set(folders)))
    )


def _names_of(library: Path) -> set[str]:
    """Return the paths of the library and of its symlinks in the same folder. The loader opens e.g. `libz.so.1`."""
    stem = library.name.partition(".so")[0]
    links = {str(path) for path in library.parent.glob(f"{stem}.so*") if path.is_symlink() and path.samefile(library)}
    return {str(library)} | links


def loader_of(program: Path) -> Path | None:
    """Return the dynamic loader of an ELF program, or None if the program is statically linked.

    Raises OperatorError if it is not a 64-bit ELF program.
    """
    with program.open("rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02" or len(head) < 64:
            raise OperatorError(
                f"{program} is not a 64-bit ELF program; choose the interpreter itself, not a wrapper script"
            )
        offset, size, count = struct.unpack_from("=Q", head, 32)[0], *struct.unpack_from("=HH", head, 54)
        for number in range(count):
            file.seek(offset + number * size)
            segment_type, _, start, _, _, length = struct.unpack_from("=IIQQQQ", file.read(size))
            if segment_type == 3:  # PT_INTERP
                file.seek(start)  # at the end of the file if uv or conda relocated the program
                return Path(file.read(length).rstrip(b"\0").decode())
    return None
