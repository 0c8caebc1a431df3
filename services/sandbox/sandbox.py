"""Sandbox: trials in, outcomes out; as many at once as there are processors."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import tempfile
from typing import IO, Any

from rollyard.services.errors import Failure, FailureKind, OperatorError
from rollyard.services.sandbox.command import find_bubblewrap
from rollyard.services.sandbox.inside.channel import framed
from rollyard.services.sandbox.inside.deadline import MOST_DELAY
from rollyard.services.sandbox.isolation_modes import CONTROL, REFUTED, WORKS, IsolationMode, modes
from rollyard.services.sandbox.python_runtime import find_python
from rollyard.services.sandbox.records import Ending, Layers, Limits, Outcome, Trial
from rollyard.services.sandbox.zygote_link import ZygoteClient, ZygoteDied
from rollyard.services.types import Json

log = logging.getLogger(__name__)

_GRACE_S = 30.0
"""Beyond the deadline, for the warden to say what happened."""


class Sandbox:
    """Runs untrusted Python. `services/sandbox/__init__.py` says how, and what it does not protect against."""

    def __init__(
        self,
        limits: Limits,
        *,
        slots: int | None = None,
        python: str | None = None,
        bubblewrap: str | None = "",
        allow_unsandboxed: bool = False,
    ) -> None:
        """At most `slots` trials at once (None: one a processor).

        `bubblewrap` is its program; "" looks for it, None does without.
        """
        self._limits = limits
        self._slots = asyncio.Semaphore(slots or len(os.sched_getaffinity(0)))
        self._python = python
        self._bubblewrap = find_bubblewrap() if bubblewrap == "" else bubblewrap
        self._allow_unsandboxed = allow_unsandboxed
        self._errors: IO[bytes] | None = None
        self._mode: IsolationMode | None = None
        self._zygote: ZygoteClient | None = None
        self._starting = asyncio.Lock()
        self.layers = Layers(mode="none", in_force=())

    async def start(self) -> None:
        """Find the best isolation that holds here. Raises OperatorError when none does and none was not allowed."""
        python = await asyncio.to_thread(find_python, self._python)
        self._errors = tempfile.TemporaryFile(prefix="rollyard-sandbox-")  # noqa: SIM115 (closed by stop)
        refused = [] if self._bubblewrap else ["bubblewrap: not there (apt-get install bubblewrap)"]
        for mode in modes(python, self._bubblewrap, unsandboxed=self._allow_unsandboxed):
            self._mode = mode
            why = await self._tried(mode, tuple(refused))
            if not why:
                if not mode.isolates:
                    log.warning("answers run UNSANDBOXED, as this user: %s", "; ".join(refused))
                return
            refused.append(f"{mode.name}: {why}")
            await self._end_zygote()
        await self.stop()
        raise OperatorError(
            f"no isolation for untrusted code works here: {'; '.join(refused)}. Install bubblewrap and allow user "
            "namespaces, or set allow_unsandboxed: true where answers may do all that this user may"
        )

    async def stop(self) -> None:
        """End the zygote and every jail."""
        await self._end_zygote()
        self._mode = None
        if self._errors is not None:
            self._errors.close()

    async def _end_zygote(self) -> None:
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            await zygote.stop()

    async def run(self, trial: Trial) -> Outcome:
        """The outcome; clocks run from the start of the work, not in the queue. Raises Failure: no jail, no verdict."""
        async with self._slots:
            for attempt in (1, 2):
                try:
                    return await self._run(trial, await self._zygote_alive())
                except ZygoteDied as error:
                    log.warning("the sandbox's zygote died (attempt %d): %s", attempt, error)
                    last = error
            raise Failure(FailureKind.SERVER_ERROR, f"the sandbox does not come up: {last}")

    async def _tried(self, mode: IsolationMode, refused: tuple[str, ...]) -> str:
        """Start the mode and see whether it works and holds; why not, or nothing."""
        try:
            zygote = await self._zygote_alive()
            if why := mode.lacks(zygote.offered):
                return why
            self.layers = mode.layers(zygote.offered, refused)
            control = await self._run(CONTROL if mode.isolates else WORKS, zygote)
            refuted = await self._run(REFUTED, zygote)
        except (ZygoteDied, Failure) as error:
            return str(error)
        if refuted.ending is not Ending.WRONG:
            return f"a wrong answer was found {refuted.ending} ({refuted.reason})"
        if not control.passed:
            return f"the trial of the jail ended {control.ending}: {control.reason} {control.output[-500:]}".strip()
        return ""

    async def _zygote_alive(self) -> ZygoteClient:
        async with self._starting:
            if self._zygote is not None and self._zygote.alive:
                return self._zygote
            if self._mode is None or self._errors is None:
                raise ZygoteDied("the sandbox is not started")
            await self._end_zygote()
            self._errors.seek(0)  # the zygote writes where this stands: the description is shared
            self._errors.truncate()
            zygote = await ZygoteClient.start(self._mode.command, self._errors)
            python = await asyncio.to_thread(find_python, self._python)
            await zygote.instruct(self._mode.plan(self._limits, zygote.offered, python))
            self._zygote = zygote
            return zygote

    async def _run(self, trial: Trial, zygote: ZygoteClient) -> Outcome:
        secret = secrets.token_hex(16)
        order = framed({**trial.model_dump(), "secret": secret})
        with zygote.jail(trial.times) as jail:
            try:
                async with asyncio.timeout(MOST_DELAY * trial.times * self._limits.wall_s + _GRACE_S):
                    told = await _exchanged(jail, order)
            except TimeoutError as error:
                raise ZygoteDied("a jail did not report after its deadline") from error
        if told is None:
            raise ZygoteDied(f"a jail ended without a word. {zygote.stderr_tail()}")
        return self._outcome(trial, told, secret)

    def _outcome(self, trial: Trial, told: Json, secret: str) -> Outcome:
        report: Json = told["report"]
        state = report.get("state")
        if told["ended"] == "no_jail" or state == "no_jail":
            raise Failure(FailureKind.SERVER_ERROR, f"a jail could not be made: {report.get('reason')}")
        reason, passed_over = _text(report.get("reason", "")), _text(report.get("passed_over", ""))
        if told["ended"] == "deadline":
            ending, reason = Ending.DEADLINE, f"no end after {trial.times * self._limits.wall_s:g} s"
        elif state == Ending.PASSED:
            genuine = secrets.compare_digest(str(report.get("secret")), secret)
            ending = Ending.PASSED if genuine else Ending.BROKEN
        elif isinstance(state, str) and state in Ending.__members__.values():
            ending = Ending(state)
        else:
            ending, reason = Ending.BROKEN, "the tests' process ended without a report"
        if ending is Ending.CPU:
            reason = f"more than {trial.times * self._limits.cpu_s} s of CPU: {reason}"
        return Outcome(
            ending=ending,
            tests_passed=int(report.get("passed", 0)),
            tests=len(trial.tests),
            reason=reason,
            passed_over=passed_over,
            output=told["output"],
            output_cut=told["output_cut"],
            cpu_s=told["cpu_s"],
            wall_s=told["wall_s"],
            layers=self.layers.in_force,
        )


def _text(told: object) -> str:
    """An answer's words may hold half a surrogate pair, which no JSON of ours takes: a loss must stay one."""
    return str(told).encode(errors="replace").decode()


async def _exchanged(jail: socket.socket, order: bytes) -> Any:
    """Send the order, read what comes back until the jail hangs up; None if nothing does."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(jail, order)
        pieces = []
        while piece := await loop.sock_recv(jail, 1 << 18):
            pieces.append(piece)
        return json.loads(b"".join(pieces))
    except (OSError, ValueError):
        return None
