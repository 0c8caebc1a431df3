"""The entry point of the commands: imports, Ctrl-C and a closed output."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

from rollyard.records.data_files import INSTALLED
from tests.support.commands import BIN

SCRIPTS = tomllib.loads((INSTALLED / "pyproject.toml").read_text())["project"]["scripts"]
INTERRUPTED_DURING_IMPORTS = """
import os, signal, sys
from rollyard.cli.entry import main

class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == "pydantic":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, CtrlC())
sys.argv = ["/usr/local/bin/ng_status"]
main()
"""


def test_ctrl_c_during_the_imports_ends_a_command_with_130_and_no_output() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_DURING_IMPORTS], cwd=INSTALLED, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_every_command_is_installed_and_has_a_module_of_its_name() -> None:
    for name, target in SCRIPTS.items():
        assert target == "rollyard.cli.entry:main"
        assert (INSTALLED / f"cli/{name.removeprefix('ng_')}.py").is_file()
        assert os.access(BIN / name, os.X_OK)


def test_a_command_whose_output_is_closed_reports_it_and_fails() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from rollyard.cli.status import main; main()", "--help"]
    done = subprocess.run(command, cwd=INSTALLED, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr.startswith("ng_status: ") and done.stderr.count("\n") == 1
