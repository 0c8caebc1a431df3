"""What NeMo Gym's servers may not do to the host during a comparison."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.external.nemo_gym.compatibility.warm_python import SYSTEM_INSTALLERS, server_environment


@pytest.mark.parametrize("installer", SYSTEM_INSTALLERS)
def test_a_server_cannot_install_system_packages(installer: str, tmp_path: Path) -> None:
    shell = ["/bin/sh", "-c", f"command -v {installer}; {installer} --version"]
    tried = subprocess.run(shell, env=server_environment(tmp_path), capture_output=True, text=True, check=False)
    assert tried.stdout.strip() == str(tmp_path / "guard" / installer)
    assert tried.returncode == 1
    assert "installs no system packages" in tried.stderr
