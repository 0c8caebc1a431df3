"""One private SLURM for all tests of this folder. Without its programs, nothing is collected."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.external.slurm.cluster import PROGRAMS, Cluster, running_cluster
from tests.external.slurm.launched import Launcher

HAS_SLURM = all(shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") for program in PROGRAMS)
collect_ignore_glob = [] if HAS_SLURM and os.geteuid() == 0 else ["test_*.py"]
_LAST = ("test_two_nodes.py", "test_slow_ends.py", "test_lost_node.py")
"""Tests of jobs that were submitted at the start of the session, and those that take a node from the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _LAST.index(item.path.name) + 1 if item.path.name in _LAST else 0)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two idle nodes with eight GPUs each. Skips its tests if a daemon cannot be started."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def launcher(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    """Submits small Python programs."""
    return Launcher(cluster, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(autouse=True, scope="session")
def slow_jobs(launcher: Launcher, request: pytest.FixtureRequest) -> None:
    """Jobs whose ends take a minute, submitted before the first test."""
    if any(item.path.name in ("test_slow_ends.py", "test_two_nodes.py") for item in request.session.items):
        launcher.submit_slow()


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
