"""A single-machine Ray cluster for all tests of this folder. Without Ray (make test-ray), nothing is collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.external.ray.clusters import Node, short_folder

HAS_RAY = importlib.util.find_spec("ray") is not None
collect_ignore_glob = [] if HAS_RAY else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    with short_folder() as folder, Node.head(folder, "127.0.0.1") as node:
        yield node.address
