"""ProgramTransport: says why, if the program that runs the servers has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from rollyard.records.errors import Failure, RunError
from rollyard.services.http.transport import HttpResponse, Transport
from rollyard.services.runtime.programs.program import Program
from rollyard.services.runtime.programs.program_errors import ended_badly


class ProgramTransport:
    """Sends requests until the program has ended, and then raises RunError with the last lines of its log.

    Otherwise, every episode would be retried on servers that no longer exist.
    """

    def __init__(self, transport: Transport, program: Program) -> None:
        self._transport = transport
        self._program = program

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpResponse:
        self._check()
        try:
            return await self._transport.send(method, url, body, headers, timeout_s)
        except Failure:
            self._check()
            raise

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        self._check()
        return await self._transport.stream(method, url, body, headers, timeout_s)

    async def close(self) -> None:
        await self._transport.close()

    def _check(self) -> None:
        if not self._program.running:
            raise RunError(f"the servers are gone: {ended_badly(self._program)}")
