"""TransferPublisher: sends each version of the weights to the engines' GPUs, by vLLM's weight-transfer protocol.

    /pause, /init_weight_transfer_engine (once), /start_weight_update, /update_weights, /finish_weight_update,
    /reset_prefix_cache, /resume

The tensors leave in trl/weight_senders.py. The model server passes each call to every engine, refuses a wrong order,
and lets no engine continue whose weights are incomplete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, Protocol

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.types import Json
from rollyard.training.weight_publisher import PAUSES, REFUSALS, STATUS_S, PolicyClient, PublishedWeights

log = logging.getLogger(__name__)

_CONFLICT = 409
_ABANDON_LEASE_S = 1.0
"""After a failed transfer, the model server restarts the engines whose weights are incomplete once this lease ends."""


class TransferPublisher:
    """Publishes versions one at a time. The weights that are sent are those that the sender then has."""

    def __init__(self, client: PolicyClient, sender: WeightSender, *, timeout_s: float) -> None:
        self._client = client
        self._sender = sender
        self._timeout_s = timeout_s
        self._connected: frozenset[str] = frozenset()
        """URLs of the engines that have joined."""
        self._published = ""
        self._repairs = 0
        self._finish_sent = False
        """Whether the current update has reached its last step."""

    async def publish(self, version: str, save: Callable[[Path], None] | None = None) -> PublishedWeights:
        """Send the weights to all engines as this version. `save` is not called: there are no files.

        A transfer that fails is repeated from the start, with a new connection, up to `timeout_s` seconds in total.
        Raises RunError if the engines refuse the weights or do not have them in time; engines whose weights are
        incomplete then answer no model call until they have been restarted.
        """
        started, failures = time.monotonic(), 0
        self._finish_sent = False
        until = started + self._timeout_s
        while True:
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                    await self._transfer(version, until)
                break
            except (Failure, TimeoutError, SendFailed) as error:
                await self._disconnect()
                failures += 1
                pause = PAUSES.pause_s(failures)
                refused = isinstance(error, Failure) and _is_refusal(error)
                if refused or time.monotonic() + pause >= until:
                    await self._abandon()
                    raise RunError(_problem(version, error, self._timeout_s, refused=refused)) from error
                log.warning("sending version %s failed and is repeated: %s", version, error)
            except BaseException:
                await self._disconnect()
                await self._abandon()
                raise
            await asyncio.sleep(pause)
        self._published, self._repairs = version, 0
        return PublishedWeights(version, time.monotonic() - started)

    async def repair(self) -> PublishedWeights | None:
        """Send the latest version again, as `step_000012.1`, if an engine was restarted and lost it; otherwise return
        None. Model calls are refused until then. Raises RunError like `publish`.
        """
        try:
            status = await self._client.status(STATUS_S)
        except Failure:
            return None  # the model server restarts; the next call sees its engines
        if not self._published or not status.get("engines") or not status.get("difference"):
            return None
        version, repairs = self._published, self._repairs + 1
        await self._disconnect()  # the engine may have the same address as before
        published = await self.publish(f"{version}.{repairs}")
        self._published, self._repairs = version, repairs
        return published

    async def close(self) -> None:
        """End the connection with the engines."""
        if self._connected:
            with contextlib.suppress(Failure):
                await self._client.control("/shutdown_weight_transfer_engine", None, STATUS_S)
        await self._disconnect()

    async def _transfer(self, version: str, until: float) -> None:
        async def call(path: str, body: Json | None = None) -> Json:
            return await self._client.control(path, body, max(0.1, until - time.monotonic()))

        # The engines may have the version although a later call, or the response, failed.
        status = await self._client.status(STATUS_S) if self._finish_sent else {}
        if status.get("version") != version or status.get("difference"):
            await self._send(version, call)
        reset = await call("/reset_prefix_cache?reset_running_requests=true")
        if any(body.get("success") is False for body in _bodies(reset)):
            raise Failure(FailureKind.UPSTREAM_ERROR, "an engine did not reset its prefix cache of the old weights")
        await call("/resume")

    async def _send(self, version: str, call: Callable[..., Awaitable[Json]]) -> None:
        self._finish_sent = False
        await call("/pause?mode=keep")
        status = await self._client.status(STATUS_S)
        engines = frozenset(str(one["url"]) for one in status.get("engines") or ())
        if self._connected != engines:
            await self._disconnect()
            # GPUs of all engines, each of which receives the weights.
            sizes = _bodies(await self._client.control("/get_world_size", None, STATUS_S, method="GET"))
            info = await _in_thread(self._sender.init_info, sum(int(body["world_size"]) for body in sizes))
            await _together(self._sender.open, call("/init_weight_transfer_engine", {"init_info": info}))
            self._connected = engines
        # Before the engines' weights become incomplete, because it may fail.
        update = await _in_thread(self._sender.update_info)
        await call("/start_weight_update")
        await _together(self._sender.send, call("/update_weights", {"update_info": update}))
        self._finish_sent = True
        await call("/finish_weight_update", {"weight_version": version})

    async def _disconnect(self) -> None:
        self._connected = frozenset()
        with contextlib.suppress(Exception):
            await asyncio.to_thread(self._sender.close)

    async def _abandon(self) -> None:
        """End the pause soon, which restarts engines with incomplete weights and resumes the others."""
        with contextlib.suppress(Failure):
            await self._client.control(f"/pause?mode=keep&lease_s={_ABANDON_LEASE_S:g}", None, STATUS_S)


def _bodies(answer: Json) -> list[Json]:
    """Return the engines' responses: the response itself is that of a single engine."""
    found = [one["body"] for one in answer["engines"]] if "engines" in answer else [answer]
    return [body for body in found if isinstance(body, dict)]


class SendFailed(Exception):
    """The trainer's side of a transfer failed."""


async def _together(work: Callable[[], None], answered: Awaitable[Json]) -> None:
    """Run both sides of a transfer. Raises the first failure without waiting for the other side, which cannot end."""
    sides = [asyncio.ensure_future(_in_thread(work)), asyncio.ensure_future(answered)]
    try:
        await asyncio.gather(*sides)
    finally:
        for side in sides:
            side.cancel()
        await asyncio.gather(*sides, return_exceptions=True)


async def _in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run blocking work in a daemon thread, which neither a cancellation nor the end of the process waits for.

    Raises SendFailed for an exception.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def finish(value: Any, error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def run() -> None:
        value, failed = None, None
        try:
            value = work(*arguments)
        except Exception as error:
            failed = SendFailed(f"{type(error).__name__}: {error}")
            failed.__cause__ = error
        with contextlib.suppress(RuntimeError):  # the loop may be closed by then
            loop.call_soon_threadsafe(finish, value, failed)

    threading.Thread(target=run, daemon=True, name="weight transfer").start()
    return await done


def _is_refusal(failure: Failure) -> bool:
    """Return True if the same calls would fail again. Other conflicts (409) end with another update or a pause."""
    if failure.problem.status == _CONFLICT:
        return "already names" in failure.problem.detail
    return failure.kind in REFUSALS or "weight_transfer_config" in str(failure)


def _problem(version: str, error: BaseException, timeout_s: float, *, refused: bool) -> str:
    if refused:
        return f"the policy refuses the weights of {version}: {error}"
    reason = str(error) or "the transfer did not end"
    return (
        f"the engines did not receive version {version} within {timeout_s:g} s: {reason}. Check that the engines were "
        "started with --weight-transfer-config for the same method and can reach the trainer, or set weights.method: "
        "files"
    )


TransferMethod = Literal["nccl", "ipc"]


class WeightSender(Protocol):
    """Sends the trainer's current weights. Its methods block, and are called in other threads, one after another.

    NCCL operations cannot be interrupted: a method that does not return in time is abandoned with its thread, and
    `close` is called before the next attempt.
    """

    method: TransferMethod

    def init_info(self, workers: int) -> Json:
        """Return what engines with this total number of workers need to join (`init_info` of vLLM)."""

    def open(self) -> None:
        """Connect with the engines, which join at the same time."""

    def update_info(self) -> Json:
        """Return names, dtype_names and shapes of the weights, in the order in which they are sent (`update_info`)."""

    def send(self) -> None:
        """Send the weights, which the engines receive at the same time."""

    def close(self) -> None:
        """Give up the connection; never fails, and may be called without one."""
