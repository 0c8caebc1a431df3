"""Boxes of each kind that this host allows."""

from __future__ import annotations

import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.sandbox.backends import BackendName, backend_named
from rollyard.services.sandbox.box import Box, BoxBackend, BoxLimits, plan_for

TEST_IMAGE = "rollyard-test:1"
"""An image with this host's shell and Python, which `tests/external/harbor/engine.py` makes."""
LIMITS = BoxLimits(storage_mb=16, memory_mb=1024, processes=24, output_kb=4)
_found: dict[str, tuple[BoxBackend | None, str]] = {}


async def backend_or_why(name: BackendName = "namespaces") -> tuple[BoxBackend | None, str]:
    """Return the backend, or why its boxes cannot start on this host. Tried once per process."""
    if name not in _found:
        try:
            backend = await backend_named(name, network="host")
            await (await backend.start(plan_for(LIMITS, image=TEST_IMAGE))).close()
            _found[name] = (backend, "")
        except OperatorError as error:
            _found[name] = (None, str(error))
    return _found[name]


async def why_no_box(name: BackendName = "namespaces") -> str:
    return (await backend_or_why(name))[1]


async def start_or_skip(name: BackendName, limits: BoxLimits = LIMITS, *, endpoint: bool = False) -> Box:
    backend, why = await backend_or_why(name)
    if backend is None:
        pytest.skip(f"no boxes of the kind {name}: {why}")
    return await backend.start(plan_for(limits, folders=["/app"], image=TEST_IMAGE, endpoint=endpoint))
