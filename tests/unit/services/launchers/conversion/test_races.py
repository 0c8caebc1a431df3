"""Real processes that race for one conversion, or are killed during it."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollyard.services.io.search_path import INSTALLED
from rollyard.services.launchers.conversion import is_converted
from tests.support.waiting import eventually
from tests.unit.services.launchers.conversion.fake_conversion import write_checkpoint

COMMAND = [sys.executable, "-m", "tests.unit.services.launchers.conversion.fake_conversion"]


def start(folder: Path, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, *COMMAND, str(folder), *arguments],
        cwd=INSTALLED,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def conversions(folder: Path) -> list[str]:
    return (folder / "conversions").read_text().splitlines() if (folder / "conversions").exists() else []


def run(folder: Path, *arguments: str) -> list[str]:
    """Convert in as many processes as the last argument says, and return their output."""
    with start(folder, *arguments) as process:
        output = process.communicate(timeout=100)[0]
    assert process.returncode == 0, output
    return output.splitlines()


@pytest.mark.parametrize("token", ["", "one launch"])
def test_exactly_one_of_eight_processes_converts(tmp_path: Path, token: str) -> None:
    request = write_checkpoint(tmp_path)
    if token:
        run(tmp_path)
        (tmp_path / "conversions").unlink()
    lines = run(tmp_path, token, "0.3", "8")
    assert len(conversions(tmp_path)) == 1
    assert sum(line.startswith("Successfully converted checkpoint to: ") for line in lines) == 1
    paths = [line for line in lines if line.startswith("/")]
    assert (len(paths), len(set(paths))) == (8, 1)
    assert is_converted(request)
    assert not list(tmp_path.rglob("*.tmp.*"))


def test_killed_at_random_instants_the_next_conversion_succeeds(tmp_path: Path) -> None:
    """B2: a killed job left a broken cache that counted as valid, or a folder that made every later job fail."""
    request = write_checkpoint(tmp_path)
    for count in range(3):
        with start(tmp_path, "", "0.3") as process:
            eventually("the conversion starts", lambda count=count: len(conversions(tmp_path)) > count)  # type: ignore[misc]
            time.sleep(random.uniform(0, 0.3))
            process.kill()
        if is_converted(request):
            break
    run(tmp_path, "", "0", "3")
    assert is_converted(request)
    assert not list(tmp_path.rglob("*.tmp.*"))


def test_a_waiter_takes_over_when_the_converting_process_is_killed(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    with start(tmp_path, "", "100") as first:
        eventually("the first one converts", lambda: conversions(tmp_path))
        with start(tmp_path) as second:
            assert second.stdout
            assert second.stdout.readline() == "Another process is converting, waiting for completion...\n"
            first.kill()
            rest = second.stdout.read()
    assert second.returncode == 0
    assert f"process {first.pid} on" in rest and "ended without a result" in rest
    assert len(conversions(tmp_path)) == 2
    assert is_converted(request)


def test_a_waiter_in_another_container_takes_over_after_the_expiry(tmp_path: Path) -> None:
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a PID namespace")
    request = write_checkpoint(tmp_path)
    with start(tmp_path, "", "100", prefix=apart) as first:
        eventually("the first one converts", lambda: conversions(tmp_path))
        with start(tmp_path) as second:
            assert second.stdout
            assert second.stdout.readline() == "Another process is converting, waiting for completion...\n"
            first.kill()
            assert "ended without a result" in second.stdout.read()
    assert second.returncode == 0
    assert is_converted(request)
