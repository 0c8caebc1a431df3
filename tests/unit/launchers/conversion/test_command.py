"""The command: options, output and exit status. Conversions with torch are tested in tests/external/conversion."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollyard.launchers.conversion.__main__ import main
from rollyard.launchers.conversion.cache import convert
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from tests.unit.launchers.conversion.fake_conversion import CopyingConverter, write_checkpoint


def command(*arguments: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollyard.launchers.conversion", *arguments],
        cwd=INSTALLED,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )


def test_an_existing_conversion_is_found_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = write_checkpoint(tmp_path)
    path = convert(request, CopyingConverter(), report=lambda line: None)
    flags = ["--dcp-ckpt-path", f"{request.checkpoint}/", "--config", str(request.config)]  # as of NeMo-RL's converter
    done = command(*flags, environ=request.environ)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines), lines[-1], done.stderr) == (0, 3, str(path), "")
    assert main([*flags, "--print-path"], request.environ) == 0
    quiet = capsys.readouterr()
    assert (quiet.out, quiet.err.splitlines()) == (f"{path}\n", lines[:2])


def test_a_failure_is_one_line_with_status_1(tmp_path: Path) -> None:
    """B1: the status of a failed conversion was lost, and the evaluation ran."""
    request = write_checkpoint(tmp_path)
    flags = ["--dcp-ckpt-path", str(request.checkpoint), "--dcp-config", str(request.config)]
    done = command(*flags, environ=request.environ)  # no torch, or .metadata is not a pickle
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "log").rglob("*.tmp.*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--dcp-ckpt-path is required"),
        (["--dcp-ckpt-path", "d"], "--dcp-config is required"),
        (["--dcp-ckpt", "d"], "--dcp-ckpt d"),
        (["--force-conversion", "--force-token", "t"], "not allowed with"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        main(arguments)
