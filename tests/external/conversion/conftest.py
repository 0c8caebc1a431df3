"""Checkpoints of small models for the tests of this folder (make test-conversion); they need torch."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollyard.launchers.conversion import ConversionRequest
from tests.support.smoke import pytest_ignore_collect

__all__ = ["pytest_ignore_collect"]
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]

Make = Callable[..., ConversionRequest]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """The folder of a checkpoint that `dcp_files` wrote with these options, written once."""
    from tests.external.conversion.dcp_files import Saver

    folders: dict[tuple[str, ...], Path] = {}
    with Saver() as saver:

        def folder(*options: str) -> Path:
            if options not in folders:
                folders[options] = tmp_path_factory.mktemp("checkpoint")
                saver.save(folders[options], *options)
            return folders[options]

        yield folder


@pytest.fixture
def checkpoint(saved: Callable[..., Path], tmp_path: Path) -> Make:
    """A copy of such a checkpoint, with an empty cache, for one test."""

    def copy(*options: str) -> ConversionRequest:
        shutil.copytree(saved(*options), tmp_path, dirs_exist_ok=True)
        step = tmp_path / "step_7"
        text = (step / "config.yaml").read_text()
        (step / "config.yaml").write_text(text.replace(str(saved(*options)), str(tmp_path)))
        return ConversionRequest(step / "policy" / "weights", step / "config.yaml", {"LOG": str(tmp_path / "log")})

    return copy
