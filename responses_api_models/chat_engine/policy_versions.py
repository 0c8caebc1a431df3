"""Tracks the policy's version, the version on each engine, and the version that sampled a turn.

A version is a name. vLLM also stores one (`/update_weight_version`), and its token-in responses report the version of
each token. vLLM calls the weights that an engine was started with `default`; for Rollyard, they are the first version.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from pathlib import PurePath
from typing import Any

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import PolicyVersion
from rollyard.responses_api_models.chat_engine.checkpoint import (
    Checkpoint,
    ModelSignature,
    adapter_name,
    bad_request,
    conflict,
    upstream_error,
)
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.responses.response_validity import malformed

STARTED = "default"
"""vLLM's name for the weights that an engine was started with."""
CHANGING = "changing"
"""Name of an engine's version during an update. If an engine has it at any other time, an update was interrupted."""


class PolicyVersions:
    def __init__(self, first: str, *, is_exclusive: bool) -> None:
        """`is_exclusive` means that only this server changes the weights, so an unknown version is an error."""
        self.first = first
        self.folder: str | None = ""
        """The folder of the policy's weights: empty for the weights that the engines were started with, None if a
        trainer transferred them."""
        self.root = ""
        """The folder or hub name of the model that the engines were started with; empty if it cannot be read on this
        host."""
        self.invalid: set[str] = set()
        """Engines that lost their weights or are receiving new ones. They cannot load other weights
        (weight_update.py)."""
        self._is_exclusive = is_exclusive
        self._past = [first]
        self._held: dict[str, str | None] = {}
        self._why: dict[str, str] = {}
        self._checkpoints: dict[str, Checkpoint] = {}

    @property
    def now(self) -> str:
        return self._past[-1]

    @property
    def mark(self) -> int:
        """The number of versions before the current one; `sampled` uses it as a point in time."""
        return len(self._past) - 1

    @property
    def has_adapter(self) -> bool:
        return self.adapter_folder(self.now) is not None

    def engine_model(self) -> str:
        """Return the name under which engines serve the policy's version; empty for the one they were started with."""
        return adapter_name(self.now) if self._checkpoints and self.has_adapter else ""

    def learn_adapter(self, version: str, checkpoint: Checkpoint) -> None:
        self._checkpoints.setdefault(version, checkpoint)

    def adapter_folder(self, version: str) -> str | None:
        known = self._checkpoints.get(version)
        return known.folder if known is not None and known.is_adapter else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self._checkpoints.get(self.now)

    def started_with(self, root: str, checkpoint: Checkpoint) -> None:
        """Set the checkpoint of the first version, which engines load from `root` at their start; once."""
        if self.first not in self._checkpoints:
            self.root = root
            self._checkpoints[self.first] = checkpoint

    @property
    def model(self) -> ModelSignature | None:
        """The model that the engines were started with, or that of the first update if this host cannot read it."""
        return next((known.signature for known in self._checkpoints.values() if known.signature), None)

    def fingerprint(self, version: str | None) -> str:
        known = self._checkpoints.get(version or "")
        return known.fingerprint if known else ""

    def check_name(self, version: str, fingerprint: str = "") -> None:
        """Raises Failure with status 409 if the name belongs to earlier weights that differ or may differ."""
        if version not in self._past or (fingerprint and fingerprint == self.fingerprint(version)):
            return
        known = self.fingerprint(version) or "not known"
        raise conflict(
            f"version {version!r} already names earlier weights (fingerprint {known}), and the new weights differ "
            f"(fingerprint {fingerprint or 'not known'}): each version needs its own name"
        )

    def advance(self, version: str, folder: str | None, checkpoint: Checkpoint | None = None) -> None:
        self._past.append(version)
        self.folder = folder
        if checkpoint is not None:
            self._checkpoints[version] = checkpoint

    def hold(self, url: str, version: str | None, why: str = "") -> None:
        """Record the version on the engine at `url`; None, with the reason, if its weights are unknown."""
        self._held[url] = version
        self._why[url] = f" ({why})" if why else ""

    def held(self, url: str) -> str | None:
        return self._held.get(url, self.first)

    def named(self, label: Any) -> str | None:
        """Return the version that vLLM's version `label` denotes; None if an update was interrupted."""
        return self.first if label == STARTED else None if label == CHANGING else str(label)

    @property
    def never_changed(self) -> bool:
        """Whether nothing is known of any engine but that it was started with the first version, which is current."""
        return not self._held and self._past[-1] == self.first

    def difference(self, urls: Iterable[str]) -> str:
        """Return which engines do not have the policy's version, as text; empty if all of them have it."""
        if self.never_changed:
            return ""
        now = self.now
        wrong = {url: held for url in urls if (held := self._held.get(url, self.first)) != now}
        if not wrong:
            return ""
        holds = (
            f"{url} has {'unknown weights' if held is None else repr(held)}{self._why.get(url, '')}"
            for url, held in wrong.items()
        )
        return f"the policy's version is {now!r}, but {', '.join(holds)}"

    def sampled(self, mark: int, spans: Any, url: str | None) -> PolicyVersion:
        """Return the version that sampled a turn, which started at `mark`. If the version changed during the turn, also
        return the last version and vLLM's `spans`.

        Raises Failure upstream_error if the engine sampled with weights that the policy did not have during the turn,
        because it was restarted or another client changed its weights.
        """
        start, now = self._past[mark], self.now
        if not isinstance(spans, list) or not spans:
            return self._named(start, now)
        if not all(isinstance(span, dict) for span in spans):
            raise malformed("has weight_versions with entries that are not objects", spans)
        spans = [{**span, "version": self.named(span.get("version"))} for span in spans]
        used = [span["version"] for span in spans]
        unexpected = [version for version in used if version not in self._past[mark:]]
        if unexpected and self._is_exclusive:
            if url:
                self.hold(url, used[-1])
            raise upstream_error(
                f"{url} sampled with weights {unexpected[0]!r} while the policy's version was {start!r}; it may have "
                "been restarted, or another client may have changed its weights"
            )
        if len(spans) == 1:
            return self._named(used[0], used[0])
        return {**self._named(used[0], used[-1]), "policy_version_end": used[-1], "weight_versions": spans}

    def _named(self, start: str | None, end: str | None) -> PolicyVersion:
        named: PolicyVersion = {"policy_version": start}
        if first := self.fingerprint(start):
            named["policy_fingerprint"] = first
        if end != start:
            named["policy_version_end"] = end
            if last := self.fingerprint(end):
                named["policy_fingerprint_end"] = last
        return named


def next_version(previous: str, folder: str) -> str:
    """Return the default name of a version: the number after `previous` if that is one, else the folder's name."""
    return str(int(previous) + 1) if previous.isdecimal() else PurePath(folder).name


_VERSION = re.compile(r"[!-~]([ -~]{0,198}[!-~])?")


def checked_version(version: Any) -> str:
    if isinstance(version, int) and not isinstance(version, bool):
        version = str(version)
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise bad_request(f"version: found {str(version)[:100]!r}; expected a short ASCII name, e.g. 'step-12'")
    if version in (STARTED, CHANGING):
        raise bad_request(f"version: {version!r} is reserved by engines; choose another name")
    return version


VERSION_HEADER = b"x-rollyard-policy-version"
START_VERSION_HEADER = b"x-rollyard-policy-version-begun"
"""Header with the version under which a call started, if it differs from the version under which it ended."""
PAUSED = "the engines are paused (resume them with POST /resume)"
ASLEEP = "the engines are asleep (wake them with POST /wake_up)"
STOPPING = "the engines are being paused"
UPDATING = "a weight update is running"
RESYNCING = "a restarted engine is loading the policy's weights"


@functools.lru_cache(maxsize=16)
def _version_headers(version: str) -> tuple[tuple[bytes, bytes], ...]:
    return ((VERSION_HEADER, version.encode("latin-1", "replace")),)


class Gate:
    """The gate in front of every model call, which prevents a rollout from being sampled with a mixture of weights.

    While weights change, calls wait. While engines have different weights, calls are rejected, and so are the responses
    to calls in flight. Every response reports the policy version.
    """

    def __init__(self, versions: PolicyVersions, urls: Callable[[], list[str]], timeout_s: float) -> None:
        self._versions = versions
        self._urls = urls
        self._timeout_s = timeout_s
        self.resync: Callable[[], Awaitable[None]] | None = None
        """Called before a call is rejected, to load the policy's weights into all engines."""
        self._reasons: dict[str, None] = {}
        self._opened = asyncio.Event()
        self._opened.set()

    def shut(self, reason: str) -> None:
        self._reasons[reason] = None
        self._opened.clear()

    def open(self, reason: str) -> None:
        self._reasons.pop(reason, None)
        if not self._reasons:
            self._opened.set()

    @contextlib.contextmanager
    def shut_while(self, reason: str) -> Iterator[None]:
        self.shut(reason)
        try:
            yield
        finally:
            self.open(reason)

    def waits_for(self, reason: str) -> bool:
        return reason in self._reasons

    @property
    def reasons(self) -> list[str]:
        return list(self._reasons)

    @property
    def stopped(self) -> bool:
        return PAUSED in self._reasons or ASLEEP in self._reasons

    def update(self) -> Coroutine[Any, Any, None] | None:
        """Return what waits for the end of a weight update; None if none runs. Called before each attempt of a model
        call, because a repeated one is already behind the gate.
        """
        return self._updated() if UPDATING in self._reasons else None

    async def _updated(self) -> None:
        while UPDATING in self._reasons:
            await self._opened.wait()

    def guarded(self, handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def answer(call: RawRequest) -> RawResponse:
            if self._needs_check():
                if self._reasons:
                    await self._wait()
                await self.look()
            started = self._versions.now
            reply = self.with_version(await handler(call), started)
            if reply.stream is None and self._needs_check():
                if list(self._reasons) == [UPDATING]:
                    await self._wait()  # the result of the update decides
                # If the engines are paused or asleep, the response was complete before they stopped.
                if not self.stopped:
                    self.check()
            return reply

        return answer

    def with_version(self, reply: bytes | RawResponse, started: str = "") -> RawResponse:
        """Return the response with headers that contain the policy version."""
        now = self._versions.now
        headers = _version_headers(now)
        if started and started != now:
            headers += ((START_VERSION_HEADER, started.encode("latin-1", "replace")),)
        if isinstance(reply, bytes):
            return RawResponse(reply, headers=headers)
        reply.headers = headers + reply.headers
        return reply

    def check(self) -> None:
        """Raises Failure upstream_error while engines have different weights."""
        if difference := self._versions.difference(self._urls()):
            fix = "restart engines with unknown weights, or load one version into all engines with POST /weights/update"
            raise Failure(FailureKind.UPSTREAM_ERROR, f"model calls are rejected: {difference} ({fix})", status=503)

    async def look(self) -> None:
        """Resync the engines that do not have the policy's version, then `check`."""
        if self.resync is not None and self._versions.difference(self._urls()):
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self.resync()
            except TimeoutError:
                raise self._timeout(RESYNCING) from None
        self.check()

    def _needs_check(self) -> bool:
        if not self._reasons and self._versions.never_changed:  # as in most runs; this is called twice per model call
            return False
        return bool(self._reasons or self._versions.difference(self._urls()))

    async def _wait(self) -> None:
        reason = ", ".join(self._reasons)
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._reasons:
                    reason = ", ".join(self._reasons)
                    await self._opened.wait()
        except TimeoutError:
            raise self._timeout(reason) from None

    def _timeout(self, reason: str) -> Failure:
        detail = f"the model call waited longer than {self._timeout_s:g} s because {reason}"
        # Not FailureKind.TIMEOUT: the policy was not slow, and training counts its timeouts with reward 0.
        return Failure(FailureKind.UPSTREAM_ERROR, detail, status=504)
