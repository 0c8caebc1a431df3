"""Rollyard installs and starts without Ray; using Ray without it installed is an error with the install command."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.runtime.ray_launcher import on_cluster


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
async def test_the_error_for_a_missing_ray_has_the_install_command(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"pip install 'rollyard\[ray\]'"):
        async with on_cluster("127.0.0.1:6379", tmp_path):
            pass
