"""ng_doctor sandbox: what it prints."""

from __future__ import annotations

import subprocess
import sys

import orjson

from rollyard.services.cli.diagnostics import sandbox
from rollyard.services.io.search_path import INSTALLED
from rollyard.services.sandbox.records import Layers

DOCTOR = [sys.executable, "-c", "from rollyard.services.cli.doctor import main; main()", "sandbox"]


def test_the_doctor_lists_the_active_layers() -> None:
    done = subprocess.run([*DOCTOR, "+json=true"], cwd=INSTALLED, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert Layers.model_validate(orjson.loads(done.stdout)).in_force


def test_the_doctor_lists_missing_layers_with_the_reason() -> None:
    text = sandbox.format_layers(Layers(mode="landlock", in_force=("seccomp",), missing=("bubblewrap: not there",)))
    assert text.splitlines()[1:] == ["active:", "  seccomp", "missing:", "  bubblewrap: not there"]


def test_the_doctor_fails_with_an_unusable_python() -> None:
    done = subprocess.run([*DOCTOR, "+python=/bin/true"], cwd=INSTALLED, capture_output=True, text=True)
    assert (done.returncode, "cannot use the Python interpreter /bin/true" in done.stdout) == (1, True)
