"""A hook for the conftest.py of a suite: `pytest -m smoke` imports only the files with a smoke test."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Other files may import torch, trainers or engines, which takes most of the time that a smoke test may take."""
    if config.option.markexpr != "smoke" or not collection_path.match("test_*.py"):
        return None
    return True if "mark.smoke" not in collection_path.read_text() else None
