"""Starts `vllm serve` for an evaluation, waits until it is ready, and monitors it."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rollyard.launchers.evaluation.pipeline.model_source import NO_KEY
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.launchers.evaluation.pipeline.stages.running_stages import RunningStages
from rollyard.launchers.evaluation.pipeline.vllm_command import serve_arguments, serve_environment
from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.io.terminal import plain_line
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.programs.program import Program
from rollyard.services.runtime.programs.program_errors import ended_badly, tail

POLL_S = 0.25
REPORT_EVERY_S = 30.0
HEALTH_EVERY_S = 2.0
HEALTH_REQUEST_S = 10.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TRANSIENT = re.compile(
    r"EADDRINUSE|Errno 98|error while attempting to bind|out of memory|OutOfMemoryError|Free memory on device"
    r"|Available memory on node|No space left on device|Timed out|[Tt]imeout|ConnectionError"
    r"|Connection (?:reset|refused)|Temporary failure in name resolution|(?:429|50[0234]) (?:Client|Server) Error"
    r"|NCCL|nccl|placement group"
)
"""Errors of vLLM that may go away: a port or memory that another program uses, the network."""


class VllmStage:
    """A running vLLM."""

    def __init__(self, process: Program, base_url: str, key: str) -> None:
        self.process = process
        self.base_url = base_url
        self.key = key

    @classmethod
    async def start(
        cls,
        plan: EvalPlan,
        environ: Mapping[str, str],
        stages: RunningStages,
        ray_address: str | None,
        print_line: Callable[[str], None] = lambda text: None,
        *,
        has_worked: bool = False,
    ) -> VllmStage:
        """Start vLLM and wait until it is ready. Raises RunError, or OperatorError if a retry would fail again.

        `has_worked`: it has answered before with these settings, so that any error may go away.
        `print_line` receives the last line of the log from time to time.
        """
        settings = plan.config.vllm
        key = engine_key(plan, environ)
        with _reserved_port(settings.host, settings.port) as port:
            arguments = serve_arguments(
                *(plan.config, plan.vllm_command, plan.source.name, port), ray=ray_address is not None, here=plan.here
            )
            process = await Program.start(
                *("vLLM", arguments, plan.folder.vllm_log, serve_environment(environ, key, ray_address), plan.here),
                title=" ".join(arguments),
                # It has nothing to save, and its API server (0.32) sometimes logs the end of its engine as an error.
                ends_abruptly=True,
            )
            stages.add(process)
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            started = reported = time.monotonic()
            while not await is_healthy(url):
                await asyncio.wait({process.ended}, timeout=POLL_S)
                if not process.running:
                    message, status = ended_badly(process), process.ended.result()
                    killed = status < 0 or status > 128
                    if has_worked or killed or _TRANSIENT.search(process.printed()):
                        raise RunError(message)
                    raise OperatorError(message)
                if time.monotonic() - reported > REPORT_EVERY_S:
                    reported = time.monotonic()
                    print_line(f"  {'vLLM':<10} {reported - started:.0f} s: {last_line(process)}")
                if time.monotonic() - started > settings.ready_timeout_s:
                    raise RunError(
                        f"vLLM was not ready within vllm.ready_timeout_s={settings.ready_timeout_s:g}\n{tail(process)}"
                    )
        return cls(process, f"{url}/v1", key or NO_KEY)

    async def until_unhealthy(self, timeout_s: float) -> str:
        """Return why vLLM counts as dead, once GET /health has failed for `timeout_s`."""
        url, healthy = self.base_url.removesuffix("/v1"), time.monotonic()
        while (silent := time.monotonic() - healthy) < timeout_s:
            await asyncio.sleep(min(HEALTH_EVERY_S, timeout_s / 4))
            if await is_healthy(url):
                healthy = time.monotonic()
        return f"vLLM has not answered GET /health for {silent:.0f} s\n{tail(self.process)}"


def engine_key(plan: EvalPlan, environ: Mapping[str, str]) -> str:
    """Return the API key that vLLM shall require; empty: none.

    A port that the user has chosen is meant for other programs too, which do not know a random key.
    """
    settings = plan.config.vllm
    given = plan.source.api_key or environ.get("VLLM_API_KEY", "")
    if given or (settings.port is not None and settings.host in LOOPBACK):
        return given
    return secrets.token_urlsafe(24)


def last_line(process: Program) -> str:
    lines = process.printed().replace("\r", "\n").split("\n")
    return next((plain_line(line.strip())[:160] for line in reversed(lines) if line.strip()), "no output yet")


async def is_healthy(url: str) -> bool:
    transport = HttpTransport()
    try:
        return (await transport.send("GET", f"{url}/health", b"", {}, HEALTH_REQUEST_S)).status == 200
    except Failure:
        return False
    finally:
        await transport.close()


@contextmanager
def _reserved_port(host: str, port: int | None) -> Iterator[int]:
    """Reserve a free port that vLLM can still bind to.

    Linux lets two sockets share an address while neither listens, if both set SO_REUSEADDR, as vLLM does.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port or 0))
        except OSError as error:
            raise RunError(f"vLLM cannot use port {port} of {host}: {error.strerror}") from error
        yield sock.getsockname()[1]
