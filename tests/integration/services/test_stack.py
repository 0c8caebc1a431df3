"""A run of plain servers: errors when one cannot start, and what remains afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from rollyard.records.errors import RollyardError
from rollyard.services.config.run_config import RunConfig
from rollyard.services.http.listener import bind
from rollyard.services.runtime.run_dir import HOME
from rollyard.services.runtime.stack import Stack
from tests.support.fixtures import load_text, make_folder, server_yaml
from tests.support.stacks import colocated, processes

Start = Callable[[RunConfig, Path], AbstractAsyncContextManager[Stack]]

COLD = """
from rollyard.services.server.app import Server

class Failing(Server):
    async def start(self):
        raise RuntimeError("engine is cold")

server = Failing
"""


@pytest.mark.parametrize("start", [colocated, processes])
async def test_a_fixed_port_in_use_is_rejected_with_server_and_port(tmp_path: Path, start: Start) -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        config = load_text(tmp_path, server_yaml(make_folder(tmp_path), f"{{port: {port}}}"))
        with pytest.raises(RollyardError) as raised:
            async with start(config, tmp_path):
                pass
    assert "environment" in str(raised.value) and str(port) in str(raised.value)


@pytest.mark.parametrize("start", [colocated, processes])
async def test_a_server_that_cannot_start_fails_the_stack_with_its_name_and_reason(
    tmp_path: Path, start: Start
) -> None:
    config = load_text(tmp_path, server_yaml(make_folder(tmp_path, app=COLD)))
    with pytest.raises(RollyardError) as raised:
        async with start(config, tmp_path):
            pass
    assert "environment" in str(raised.value) and "engine is cold" in str(raised.value)


async def test_the_config_saved_in_the_run_folder_holds_no_secret(tmp_path: Path) -> None:
    config = load_text(tmp_path, server_yaml(make_folder(tmp_path), "{api_key: sk-1234, speed: 3}"))
    async with colocated(config, tmp_path):
        (saved,) = (tmp_path / HOME).glob("*/config.yaml")
        assert "speed: 3" in saved.read_text() and "sk-1234" not in saved.read_text()
