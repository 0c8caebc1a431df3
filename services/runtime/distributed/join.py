"""Serving some servers of a run whose head is elsewhere, until they are told to stop."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollyard.services.config.load import RunConfig, ServerSpec
from rollyard.services.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.services.head.client import RegistryClient
from rollyard.services.http.access.hosts import is_loopback
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.serve import serve
from rollyard.services.types import Directory, Json, Keys, Launch

_AGAIN_S = 0.5
_NOT_YET = (FailureKind.UNREACHABLE, FailureKind.TIMEOUT)


@dataclass(frozen=True)
class Place:
    """Where servers listen, and how others find them there."""

    head_url: str
    host: str | None = None
    """Address to bind, where a server's settings name none."""
    advertise: str | None = None
    """Name by which others reach this machine; default: its own name."""

    def launch(self, spec: ServerSpec, keys: Keys) -> Launch:
        """What the server is told."""
        settings: Json = {"host": self.host, **spec.raw} if self.host else spec.raw
        bound = str(settings.get("host", spec.settings.host))
        open_to_others = not is_loopback(bound)
        name = self.advertise or (socket.gethostname() if bound in ("0.0.0.0", "::") else None)
        return Launch(
            name=spec.name,
            # Two of one name are replicas: also those that one machine starts twice.
            instance=f"{spec.name}@{name or bound}#{secrets.token_hex(3)}",
            family=spec.family,
            implementation=spec.implementation,
            folder=str(spec.folder),
            settings=settings,
            keys=keys,
            head_url=self.head_url,
            parent_pid=0,
            advertise=name if open_to_others else None,
        )


async def join_run(
    config: RunConfig,
    specs: list[ServerSpec],
    keys: Keys,
    place: Place,
    stop: asyncio.Event,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    patience_s: float,
) -> None:
    """Serve `specs` until `stop`. Raises OperatorError or RunError: the head is not there, or not of this run."""
    if alone := [spec.name for spec in specs if spec.isolated]:
        listed = ", ".join(alone)
        raise OperatorError(
            f"{listed}: asks for an environment of its own, which a server that joins a head from elsewhere does not "
            "get: install its requirements beside the stack there, or start it with the head"
        )
    looking = asyncio.create_task(_directory(keys, place.head_url, say, patience_s))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({looking, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not looking.done():
        looking.cancel()
        return
    _check_same(config, specs, looking.result(), place.head_url)
    serving = [asyncio.create_task(serve(place.launch(spec, keys), environ, stop, say)) for spec in specs]
    try:
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        ended = await asyncio.gather(*serving, return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error


async def _directory(keys: Keys, head_url: str, say: Callable[[str], None], patience_s: float) -> Directory:
    """The head's, as soon as it answers."""
    transport = HttpTransport()
    link, began, told = RegistryClient(transport, head_url, keys), time.monotonic(), False
    try:
        while True:
            try:
                return await link.directory()
            except Failure as failure:
                if failure.kind in (FailureKind.WRONG_RUN, FailureKind.UNAUTHORIZED):
                    raise OperatorError(
                        f"the head at {head_url} belongs to another run: every part of a run needs the same token "
                        "(ROLLYARD_TOKEN)"
                    ) from failure
                if failure.kind not in _NOT_YET or time.monotonic() > began + patience_s:
                    detail = failure.problem.detail
                    raise RunError(f"no head at {head_url} within {patience_s:g} s: {detail}") from failure
                if not told:
                    say(f"waiting for the head at {head_url}")
                    told = True
            await asyncio.sleep(_AGAIN_S)
    finally:
        await transport.close()


def _check_same(config: RunConfig, specs: list[ServerSpec], directory: Directory, head_url: str) -> None:
    """Both sides were given the same configs. Raises OperatorError."""
    ours = config.identity()
    for spec in specs:
        theirs = directory.settings.get(spec.name)
        if theirs is None:
            have = ", ".join(sorted(directory.servers))
            raise OperatorError(f"the head at {head_url} has no server {spec.name!r} in its configs (it has {have})")
        different = [
            key for key in {**theirs, **ours[spec.name]} if theirs.get(key, ...) != ours[spec.name].get(key, ...)
        ]
        if different:
            listed = ", ".join(sorted(different))
            raise OperatorError(
                f"{spec.name} is configured otherwise at the head ({listed}): start every part with the same configs"
            )
