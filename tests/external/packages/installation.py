"""A new virtual environment outside the checkout, with the packages that a user installs."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.modules import ROOT
from tests.support.waiting import deadline_s

HANG_S = 3 * deadline_s()
_UNWANTED = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")


class Installation:
    """A virtual environment in `folder`, created by uv if available and by `python -m venv` otherwise."""

    def __init__(self, python: Path, folder: Path, constraints: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._constraints = constraints
        if _uv():
            _checked("uv", "venv", "--quiet", "--no-project", "--python", str(python), str(folder))
        else:
            _checked(str(python), "-m", "venv", str(folder))

    def install(self, *packages: str | Path) -> None:
        """Install packages with uv if available, else with pip."""
        words = ["install", "--quiet", "--constraint", self._constraints, *packages]
        if _uv():
            # uv takes anything but the full path for a version and searches for another environment.
            _checked("uv", "pip", *words[:1], "--python", self.python, *words[1:])
        else:
            self.pip(*words)

    def pip(self, *words: str | Path) -> None:
        """Run pip, which an environment created by uv does not have at first."""
        if not any(self.folder.glob("lib/*/site-packages/pip")):
            _checked(self.python, "-m", "ensurepip")
        _checked(self.python, "-m", "pip", "--disable-pip-version-check", "--no-input", *words)

    def uninstall(self, name: str) -> None:
        if _uv():
            _checked("uv", "pip", "uninstall", "--quiet", "--python", self.python, name)
        else:
            self.pip("uninstall", "--quiet", "--yes", name)

    def files(self, name: str) -> dict[str, str | None]:
        """Path -> digest of the current content of each file of a distribution; None for a missing file."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        (record,) = site.glob(f"{name}-*.dist-info/RECORD")
        paths = [line.rsplit(",", 2)[0].strip('"') for line in record.read_text().splitlines()]
        return {path: _digest(site / path) for path in paths if not path.endswith(".pyc")}

    def run(self, *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """The output of one of its programs or of `python`. Fails unless the exit status is 0."""
        program = self.folder / "bin" / str(words[0])
        done = _run(program, *words[1:], cwd=cwd, env=env)
        assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def prints(self, code: str, *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """The output of Python code, with the working directory on the search path like in a user's shell."""
        return self.run("python", "-W", "error", "-c", code, cwd=cwd, env=env).strip()

    @contextmanager
    def stack(self, *options: str, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[None]:
        """`ng_run` with all servers ready; ended with SIGINT."""
        log = cwd / "ng_run.log"
        with log.open("wb") as output:
            command = [str(self.folder / "bin" / "ng_run"), *options]
            process = subprocess.Popen(command, cwd=cwd, env=_environment(env), stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + HANG_S
            while "servers ready!" not in log.read_text():
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            exit_status = process.wait(HANG_S)
        assert exit_status == 0, log.read_text()


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


@cache
def _uv() -> str | None:
    return shutil.which("uv")


def _checked(*command: str | Path) -> None:
    done = _run(*command, cwd=Path("/"))
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}\n{done.stderr}"


def _run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    words, variables = [str(word) for word in command], _environment(env)
    return subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, timeout=HANG_S, check=False)


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return {**variables, **(extra or {})}


def tracked(*folders: str) -> Sequence[str]:
    """Files of the checkout, including new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *folders]
    paths = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(name for name in paths if name and os.path.lexists(ROOT / name))
