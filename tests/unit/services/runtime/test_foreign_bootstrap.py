"""How NeMo Gym's programs see themselves when Rollyard starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rollyard.services.runtime import foreign_bootstrap as bootstrap


def test_a_program_finds_the_files_beside_it_by_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("print(__file__)\n")
    command = [sys.executable, bootstrap.__file__, "app.py"]
    started = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert started.stdout.strip() == str(tmp_path / "app.py")
