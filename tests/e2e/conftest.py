from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.commands import Command, in_this_process


@pytest.fixture
def ng(capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(in_this_process, capsys=capsys)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
