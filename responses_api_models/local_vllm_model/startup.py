"""Start: vLLM from nothing to an address that answers, or to an error that says why not."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollyard.responses_api_models.local_vllm_model.engine_process import EngineProcess, make_folder
from rollyard.responses_api_models.local_vllm_model.serve_command import engine_environment, serve_arguments
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.responses_api_models.local_vllm_model.startup_errors import PORT_TAKEN, cause_of, error_of
from rollyard.responses_api_models.local_vllm_model.startup_phases import FIRST, kind, phase_after
from rollyard.services.errors import Failure, RunError
from rollyard.services.http.transport import Transport

log = logging.getLogger(__name__)

POLL_S = 0.25
TELL_EVERY_S = 15.0
"""A line of the server's log says so often how far a start is."""
HEALTH_TIMEOUT_S = 5.0
TAIL_LINES = 12
"""Of the engine's log in the error; the supervisor shows 20 lines in all."""
PORTS = 3
"""Ports tried before a start fails for want of one."""


@dataclass(frozen=True)
class StartPlan:
    """All that is needed to start one engine, again and again."""

    title: str
    settings: LocalVllmModelSettings
    gpus: Sequence[str]
    key: str
    """What callers must show."""
    environ: Mapping[str, str]
    log_file: Path
    transport: Transport


class EngineStart:
    """One engine on its way up."""

    def __init__(self, plan: StartPlan) -> None:
        self.phase = FIRST
        """What it is doing."""
        self.url = ""
        """Of its API, with the /v1."""
        self._plan = plan
        self._launching: asyncio.Task[EngineProcess] | None = None
        self._began = time.monotonic()
        self._told_at = self._began

    async def run(self) -> EngineProcess:
        """The engine, ready at `url`. Raises RunError: the end of its log, the cause, where the whole log is."""
        for tries in range(1, PORTS + 1):
            with _reserved(self._plan.settings.engine_host) as port:
                self.url = _url(self._plan.settings.engine_host, port)
                self._launching = asyncio.create_task(self._launch(port))
                process = await asyncio.shield(self._launching)  # else `end` would not know of it
                why = await self._until_ready(process)
            if not why:
                log.info("%s is up at %s after %.0f s", self._plan.title, self.url, time.monotonic() - self._began)
                return process
            printed = process.printed()
            await process.stop()
            if cause_of(printed) != PORT_TAKEN or tries == PORTS:
                break
        raise RunError(self._told(why, printed))

    async def end(self) -> None:
        """End what was started, if anything was; nothing of it is left."""
        if self._launching is not None:
            process = await self._launching
            await process.stop()

    async def failure_cause(self) -> str:
        """What is wrong with an engine that was ready, in words; nothing when it is well, or merely busy.

        Without its EngineCore vLLM lives on for five seconds: it answers 503, or has closed its port already.
        """
        status = await self._health()
        if status >= 500:
            return "has lost its EngineCore"
        return "listens no more" if status == 0 and await self._refuses() else ""

    async def _health(self) -> int:
        """Status of GET /health; 0 when nobody answers."""
        try:
            url = self.url.removesuffix("/v1") + "/health"
            return (await self._plan.transport.send("GET", url, b"", {}, HEALTH_TIMEOUT_S)).status
        except Failure:
            return 0

    async def _refuses(self) -> bool:
        """True when nobody listens. A busy engine lets one wait, which is another thing."""
        address = urlsplit(self.url)
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.close()
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            pass
        return False

    async def _launch(self, port: int) -> EngineProcess:
        plan, folder = self._plan, make_folder()
        environ = engine_environment(plan.settings, plan.environ, folder, plan.gpus, plan.key)
        return await EngineProcess.start(serve_arguments(plan.settings, port), environ, folder, plan.log_file)

    async def _until_ready(self, process: EngineProcess) -> str:
        """Nothing when it is ready, else what happened instead."""
        limit_s = self._plan.settings.start_timeout_s
        while True:
            await asyncio.wait([process.ended], timeout=POLL_S)
            self._follow(process.news())
            if process.ended.done():
                return ending(process.ended.result())
            if await self._health() == 200:
                return ""
            if limit_s is not None and time.monotonic() - self._began > limit_s:
                return f"was not ready within start_timeout_s={limit_s:g}"

    def _follow(self, lines: Sequence[str]) -> None:
        phase, now = phase_after(lines, self.phase), time.monotonic()
        if kind(phase) != kind(self.phase) or now - self._told_at > TELL_EVERY_S:
            log.info("%s: %s, %.0f s", self._plan.title, phase, now - self._began)
            self._told_at = now
        self.phase = phase

    def _told(self, why: str, printed: Sequence[str]) -> str:
        tail = "\n".join(f"  | {line[:300]}" for line in printed[-TAIL_LINES:])
        happened = f"{self._plan.title} {why} while {self.phase} ({time.monotonic() - self._began:.0f} s)"
        cause = cause_of(printed) or error_of(printed) or "the log names no cause known here"
        return f"the end of its log:\n{tail}\n{happened}: {cause}\nIts log: {self._plan.log_file}"


def ending(status: int) -> str:
    """How vLLM ended, in words."""
    return f"ended with exit status {status}" if status >= 0 else f"was ended by signal {-status}"


def _url(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


@contextmanager
def _reserved(host: str) -> Iterator[int]:
    """A free port that the kernel gives to nobody else meanwhile, and that vLLM can bind nevertheless.

    Linux lets two sockets share an address while neither listens, when both ask for it; vLLM's does.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, 0))
        yield sock.getsockname()[1]
