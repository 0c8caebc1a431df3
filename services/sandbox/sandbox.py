"""Sandbox: runs trials concurrently, by default one per CPU."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
from typing import IO, Any

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.services.sandbox.inside.channel import framed
from rollyard.services.sandbox.inside.deadline import MAX_EXTENSION
from rollyard.services.sandbox.isolation_modes import CONTROL, REFUTED, WORKS, IsolationMode, modes
from rollyard.services.sandbox.python_runtime import find_python
from rollyard.services.sandbox.records import Ending, Layers, Outcome, SandboxLimits, Trial
from rollyard.services.sandbox.zygote_link import ZygoteClient, ZygoteDied

log = logging.getLogger(__name__)

_GRACE_S = 30.0
"""Extra time after the deadline for the monitor to report."""


class Sandbox:
    """Runs untrusted Python. `services/sandbox/__init__.py` describes the isolation and its limits."""

    def __init__(
        self,
        limits: SandboxLimits,
        *,
        slots: int | None = None,
        python: str | None = None,
        bubblewrap: str | None = "",
        allow_unsandboxed: bool = False,
    ) -> None:
        """`slots`: maximum number of concurrent trials (None: one per CPU).
        `bubblewrap`: path of the bubblewrap program; "" searches for it, None disables it.
        """
        self._limits = limits
        self._slots = asyncio.Semaphore(slots or len(os.sched_getaffinity(0)))
        self._python = python
        self._bubblewrap = shutil.which("bwrap") if bubblewrap == "" else bubblewrap
        self._allow_unsandboxed = allow_unsandboxed
        self._errors: IO[bytes] | None = None
        self._mode: IsolationMode | None = None
        self._zygote: ZygoteClient | None = None
        self._starting = asyncio.Lock()
        self.layers = Layers(mode="none", in_force=())

    async def start(self) -> None:
        """Start with the best isolation mode that works on this host.

        Raises OperatorError if none works, unless `allow_unsandboxed` is set.
        """
        python = await asyncio.to_thread(find_python, self._python)
        self._errors = tempfile.TemporaryFile(prefix="rollyard-sandbox-")  # noqa: SIM115 (closed by stop)
        refused = [] if self._bubblewrap else ["bubblewrap: not installed (apt-get install bubblewrap)"]
        for mode in modes(python, self._bubblewrap, unsandboxed=self._allow_unsandboxed):
            self._mode = mode
            why = await self._test_mode(mode, tuple(refused))
            if not why:
                if not mode.isolates:
                    log.warning("model-written code runs UNSANDBOXED, as the current user: %s", "; ".join(refused))
                return
            refused.append(f"{mode.name}: {why}")
            await self._end_zygote()
        await self.stop()
        raise OperatorError(
            f"no isolation mode for untrusted code works on this host: {'; '.join(refused)}. Install bubblewrap and "
            "allow user namespaces, or set allow_unsandboxed: true to run answers with all the rights of this user"
        )

    async def stop(self) -> None:
        """Kill the zygote and all jails."""
        await self._end_zygote()
        self._mode = None
        if self._errors is not None:
            self._errors.close()

    async def _end_zygote(self) -> None:
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            await zygote.stop()

    async def run(self, trial: Trial) -> Outcome:
        """Run a trial. Time in the queue does not count. Raises Failure if a jail cannot be created."""
        async with self._slots:
            for attempt in (1, 2):
                try:
                    return await self._run(trial, await self._ensure_zygote())
                except ZygoteDied as error:
                    log.warning("the sandbox's zygote died (attempt %d): %s", attempt, error)
                    last = error
            raise Failure(FailureKind.SERVER_ERROR, f"the sandbox cannot be started: {last}")

    async def _test_mode(self, mode: IsolationMode, refused: tuple[str, ...]) -> str:
        """Start the mode and test whether it works and isolates answers. Return why it does not, or ""."""
        try:
            zygote = await self._ensure_zygote()
            if why := mode.lacks(zygote.features):
                return why
            self.layers = mode.layers(zygote.features, refused)
            control_outcome = await self._run(CONTROL if mode.isolates else WORKS, zygote)
            refuted_outcome = await self._run(REFUTED, zygote)
        except (ZygoteDied, Failure) as error:
            return str(error)
        if refuted_outcome.ending is not Ending.WRONG:
            return f"a wrong answer was graded as {refuted_outcome.ending} ({refuted_outcome.reason})"
        if not control_outcome.passed:
            found = f"{control_outcome.ending}: {control_outcome.reason} {control_outcome.output[-500:]}"
            return f"the test of the jail ended as {found}".strip()
        return ""

    async def _ensure_zygote(self) -> ZygoteClient:
        async with self._starting:
            if self._zygote is not None and self._zygote.alive:
                return self._zygote
            if self._mode is None or self._errors is None:
                raise ZygoteDied("the sandbox has not been started")
            await self._end_zygote()
            self._errors.seek(0)  # the zygote shares this file offset
            self._errors.truncate()
            zygote = await ZygoteClient.start(self._mode.command, self._errors)
            python = await asyncio.to_thread(find_python, self._python)
            await zygote.send_plan(self._mode.plan(self._limits, zygote.features, python))
            self._zygote = zygote
            return zygote

    async def _run(self, trial: Trial, zygote: ZygoteClient) -> Outcome:
        secret = secrets.token_hex(16)
        order = framed({**trial.model_dump(), "secret": secret})
        with zygote.jail(trial.times) as jail:
            try:
                async with asyncio.timeout(MAX_EXTENSION * trial.times * self._limits.wall_s + _GRACE_S):
                    result = await _exchange(jail, order)
            except TimeoutError as error:
                raise ZygoteDied("a jail did not report after its deadline") from error
        if result is None:
            raise ZygoteDied(f"a jail exited without a report. {zygote.stderr_tail()}")
        return self._outcome(trial, result, secret)

    def _outcome(self, trial: Trial, result: Json, secret: str) -> Outcome:
        report: Json = result["report"]
        state = report.get("state")
        if result["ended"] == "no_jail" or state == "no_jail":
            raise Failure(FailureKind.SERVER_ERROR, f"a jail could not be created: {report.get('reason')}")
        reason, passed_over = _to_valid_text(report.get("reason", "")), _to_valid_text(report.get("passed_over", ""))
        if result["ended"] == "deadline":
            ending, reason = Ending.DEADLINE, f"not finished after {trial.times * self._limits.wall_s:g} s"
        elif state == Ending.PASSED:
            genuine = secrets.compare_digest(str(report.get("secret")), secret)
            ending = Ending.PASSED if genuine else Ending.BROKEN
        elif isinstance(state, str) and state in Ending.__members__.values():
            ending = Ending(state)
        else:
            ending, reason = Ending.BROKEN, "the tests' process exited without a report"
        if ending is Ending.CPU:
            reason = f"more than {trial.times * self._limits.cpu_s} s of CPU: {reason}"
        return Outcome(
            ending=ending,
            tests_passed=int(report.get("passed", 0)),
            tests=len(trial.tests),
            reason=reason,
            passed_over=passed_over,
            output=result["output"],
            output_cut=result["output_cut"],
            cpu_s=result["cpu_s"],
            wall_s=result["wall_s"],
            layers=self.layers.in_force,
        )


def _to_valid_text(result: object) -> str:
    """Replace lone surrogates, which an answer can produce.

    orjson rejects them, which would turn a failed trial into an internal error.
    """
    return str(result).encode(errors="replace").decode()


async def _exchange(jail: socket.socket, order: bytes) -> Any:
    """Send the order and return the jail's result, or None if the jail disconnects without a valid result."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(jail, order)
        pieces = []
        while piece := await loop.sock_recv(jail, 1 << 18):
            pieces.append(piece)
        return json.loads(b"".join(pieces))
    except (OSError, ValueError):
        return None
