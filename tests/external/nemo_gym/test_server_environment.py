"""What the programs of the comparison can change on this host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.external.nemo_gym.compatibility.warm_python import box, server_environment


@pytest.mark.parametrize("path", ["/etc/written", "/usr/written", "/root/written", "/testbed/written"])
def test_a_program_in_the_box_changes_no_file_of_the_host(path: str, tmp_path: Path) -> None:
    shell = [*box(tmp_path), "sh", "-c", f"mkdir -p {Path(path).parent}; echo x > {path}; echo x > {tmp_path}/own"]
    subprocess.run(shell, env=server_environment(tmp_path), capture_output=True, check=True)
    assert not Path(path).exists() and (tmp_path / "own").read_text() == "x\n"
