"""A stack that the real NeMo Gym starts: its head, and the servers of `mcqa` in front of a scripted endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym import NemoGymHead, NemoGymProcess
from tests.support.commands import command_environ
from tests.support.waiting import deadline_s

VENVS = {"0.4": INSTALLED / ".venv-nemo-gym", "0.7": INSTALLED / ".venv-nemo-gym07"}
START_S = 2 * deadline_s()
"""Importing NeMo Gym takes seconds on a free machine, and minutes on a busy one."""
SERVERS = (
    *("resources_servers/mcqa", "responses_api_agents/simple_agent", "responses_api_models/openai_model"),
    "environment_servers/legacy_agent",  # which 0.7 adds
)
WITHOUT_RAY = """
import ray
ray.init = lambda *arguments, **options: None
ray.is_initialized = lambda: True
"""
"""Its servers start a Ray cluster before they listen, which these servers never use."""


class Endpoint:
    """An endpoint of OpenAI's Responses API whose answer is always `\\boxed{A}`."""

    def __init__(self) -> None:
        self.requests = 0
        self.hold: asyncio.Event | None = None
        """If set, responses wait for it."""
        self.app = FastAPI()
        self.app.post("/v1/responses")(self._respond)

    async def _respond(self, request: Request) -> Json:
        await request.body()
        self.requests += 1
        if self.hold is not None:
            await self.hold.wait()
        content = [{"type": "output_text", "text": "The answer is \\boxed{A}", "annotations": []}]
        message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
        head = {"id": "r", "created_at": 1, "model": "m", "object": "response", "output": [message]}
        return {**head, "tools": [], "parallel_tool_calls": False, "tool_choice": "auto"}


@dataclass
class GymStack:
    """A running `gym env start`."""

    folder: Path
    head: str
    """HOST:PORT of its head."""
    process: asyncio.subprocess.Process
    transport: HttpTransport

    async def processes(self) -> dict[str, NemoGymProcess]:
        return {one.process_name: one for one in await NemoGymHead(self.transport, f"http://{self.head}").processes()}

    async def kill(self, server: str) -> None:
        pid = (await self.processes())[server].pid
        assert pid is not None
        for found in _family_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, signal.SIGKILL)


@contextlib.asynccontextmanager
async def gym_stack(
    folder: Path, venv: Path, endpoint: str, port: int, *, start: Sequence[str] = ()
) -> AsyncIterator[GymStack]:
    """Run `gym env start` of `venv` in `folder` until the block ends. The head listens on `port`. `start`: another
    command line that starts the same servers.
    """
    configs = "resources_servers/mcqa/configs/mcqa.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
    model = (f"+policy_base_url={endpoint}/v1", "+policy_api_key=sk-of-this-test", "+policy_model_name=m")
    program, *words = start or ("gym", "env", "start", f"+config_paths=[{configs}]", *model)
    for server in SERVERS:
        (folder / "venvs" / server).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / "venvs" / server / ".venv").symlink_to(venv)
    (folder / "without_ray").mkdir(exist_ok=True)
    (folder / "without_ray" / "sitecustomize.py").write_text(WITHOUT_RAY)
    printed = folder / f"gym-{port}.log"
    path = f"{venv}/bin{os.pathsep}{os.environ['PATH']}"
    with printed.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(venv / "bin" / program), *words),
            *("++head_server.host=127.0.0.1", f"++head_server.port={port}"),
            *(f"+uv_venv_dir={folder / 'venvs'}", "+skip_venv_if_present=true"),
            cwd=folder,
            env=command_environ({"PATH": path, "PYTHONPATH": str(folder / "without_ray"), "WANDB_MODE": "offline"}),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    transport = HttpTransport()
    stack = GymStack(folder, f"127.0.0.1:{port}", process, transport)
    try:
        async with asyncio.timeout(START_S):
            while "servers ready!" not in printed.read_text():
                assert process.returncode is None, printed.read_text()[-3000:]
                await asyncio.sleep(0.2)
        yield stack
    finally:
        await transport.close()
        families = _family_of(process.pid)
        with contextlib.suppress(ProcessLookupError):  # it exits by itself when it notices a dead server
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 60)
        for pid in families:  # what it left behind
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()


def _family_of(pid: int) -> list[int]:
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [one for child in path.read_text().split() for one in _family_of(int(child))]
    return found
