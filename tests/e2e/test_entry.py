"""The entry point of the commands: imports, Ctrl-C and a closed output."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from rollyard.records.data_files import INSTALLED
from tests.support.commands import BIN, in_this_process

SCRIPTS = tomllib.loads((INSTALLED / "pyproject.toml").read_text())["project"]["scripts"]
HELP = """
import sys
from rollyard.cli.entry import main

sys.argv = [sys.argv[1], "--help"]
try:
    main()
finally:
    print(*sorted({"numpy", "fastapi", "omegaconf", "rich", "uvloop"} & sys.modules.keys()), file=sys.stderr)
"""
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


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - {"ng_eval_launcher", "ng_submit"}))
def test_a_command_prints_its_whole_help_without_loading_what_its_work_needs(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, name], cwd=INSTALLED, capture_output=True, text=True, check=True)
    assert done.stdout == in_this_process(name, "--help", capsys=capsys).out
    assert done.stderr == "\n"


def test_a_word_after_the_end_of_the_options_is_not_a_request_for_help() -> None:
    command = [sys.executable, "-m", "rollyard.cli.entry", "ng_merge", "--", "--help"]
    done = subprocess.run(command, cwd=INSTALLED, capture_output=True, text=True)
    assert done.returncode == 2 and "--help" in done.stderr and not done.stdout
