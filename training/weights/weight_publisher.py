"""WeightPublisher: saves a version of the weights, and has every engine of the policy load it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.types import Json
from rollyard.services.backoff import Restarts
from rollyard.training.weights.policy_client import PolicyClient, WeightKind
from rollyard.training.weights.version_folders import VersionFolders

_STATUS_S = 10.0
_PAUSES = Restarts(first_pause_s=0.5, longest_pause_s=10.0)
_REFUSALS = (FailureKind.BAD_REQUEST, FailureKind.UNAUTHORIZED, FailureKind.FORBIDDEN, FailureKind.UNKNOWN_SERVER)


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A version that all engines have loaded."""

    version: str
    folder: Path | None
    """None if the weights were sent without files."""
    seconds: float
    """Duration of saving and loading."""
    warnings: tuple[str, ...] = ()
    """What the model server could not check."""


class Publisher(Protocol):
    """Brings versions of the weights to the engines, one at a time: WeightPublisher or TransferPublisher."""

    async def publish(self, version: str, save: Callable[[Path], None]) -> PublishedWeights:
        """Have every engine use the trainer's current weights as this version. Raises RunError."""
        ...

    async def repair(self) -> PublishedWeights | None:
        """Publish the latest version again if an engine has lost it; None if all have it. Raises RunError."""
        ...


class WeightPublisher:
    """Publishes versions one at a time. The trainer waits meanwhile, and so do the policy's model calls."""

    def __init__(
        self, client: PolicyClient, folders: VersionFolders, *, timeout_s: float, kind: WeightKind = "weights"
    ) -> None:
        """`kind`: `adapter` if the folders contain LoRA adapters, which the engines add to the weights that they were
        started with.
        """
        self._client = client
        self._folders = folders
        self._timeout_s = timeout_s
        self._kind = kind

    async def publish(self, version: str, save: Callable[[Path], None]) -> PublishedWeights:
        """Save a version with `save`, which writes a folder of weights, and load it into the engines.

        While an engine or the model server restarts, the update is repeated, up to `timeout_s` seconds in total. Raises
        RunError if the weights are refused or not loaded in time; the engines then have one version in common, the old
        or the new one, or refuse model calls.
        """
        started = time.monotonic()
        folder = await asyncio.to_thread(self._folders.write, version, save)
        answer = await self._load(folder, version, time.monotonic() + self._timeout_s)
        await asyncio.to_thread(self._folders.prune, {folder})
        return PublishedWeights(
            version=version,
            folder=folder,
            seconds=time.monotonic() - started,
            warnings=tuple(map(str, answer.get("warnings") or ())),
        )

    async def repair(self) -> PublishedWeights | None:
        """Return None: an engine that restarts loads the files again by itself."""
        return None

    async def _load(self, folder: Path, version: str, until: float) -> Json:
        pause = 0.0
        while True:
            try:
                return await self._client.update(folder, version, max(0.1, until - time.monotonic()), self._kind)
            except Failure as failure:
                if failure.kind in _REFUSALS:
                    raise RunError(f"the policy refuses the weights of {version}: {failure}") from failure
                # The response may have been lost, but not the update.
                if await self._has(version, folder):
                    return {}
                pause = _PAUSES.next_pause_s(pause)
                if time.monotonic() + pause >= until:
                    raise RunError(
                        f"the engines did not load version {version} within {self._timeout_s:g} s: {failure}"
                    ) from failure
            await asyncio.sleep(pause)

    async def _has(self, version: str, folder: Path) -> bool:
        try:
            status = await self._client.status(_STATUS_S)
        except Failure:
            return False
        # An engine may know the folder by another path, if `folder` contains a link.
        same = status.get("version") == version and Path(str(status.get("path"))).name == folder.name
        return same and not status.get("difference") and not status.get("waits_for")
