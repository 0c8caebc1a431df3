"""Serves some of a run's servers on this host, for a head on another host."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError, did_you_mean
from rollyard.records.run_types import (
    MIN_TOKEN,
    AccessRules,
    Directory,
    Keys,
    Launch,
    TlsFiles,
    check_token,
    derived,
)
from rollyard.records.types import Json
from rollyard.services.config.plugins import FAMILIES, FAMILY_ALIASES
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.http.access import is_loopback
from rollyard.services.http.tls import UNTRUSTED
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.serve import serve

_RETRY_S = 0.5
_RETRYABLE = (FailureKind.UNREACHABLE, FailureKind.TIMEOUT)


@dataclass(frozen=True)
class ListenAddress:
    """The address on which servers listen, and the one that they advertise."""

    head_url: str
    host: str | None = None
    """Address to bind, unless a server's settings specify one."""
    advertise: str | None = None
    """Name by which other hosts reach this one; default: its host name."""

    def launch(self, spec: ServerSpec, keys: Keys) -> Launch:
        """Return the launch message for the server."""
        settings: Json = {"host": self.host, **spec.raw} if self.host else spec.raw
        bound = str(settings.get("host", spec.settings.host))
        open_to_others = not is_loopback(bound)
        name = self.advertise or (socket.gethostname() if bound in ("0.0.0.0", "::") else None)
        # Servers with the same name are replicas, even on one host, so instance names must differ.
        instance = f"{spec.name}@{name or bound}#{secrets.token_hex(3)}"
        advertise = name if open_to_others else None
        return spec.launch(instance, keys, self.head_url, settings=settings, advertise=advertise)


async def join_run(
    config: RunConfig,
    specs: list[ServerSpec],
    keys: Keys,
    address: ListenAddress,
    stop: asyncio.Event,
    *,
    environ: Mapping[str, str],
    print_line: Callable[[str], None],
    timeout_s: float,
) -> None:
    """Serve `specs` until `stop` is set.

    Raises RunError if the head is unreachable. Raises OperatorError if the head belongs to a different run or uses
    different settings, or if a server requires its own Python environment.
    """
    if isolated := [spec.name for spec in specs if spec.isolated]:
        listed = ", ".join(isolated)
        raise OperatorError(
            f"{listed}: requires its own Python environment, which servers that join a remote head cannot have. "
            "Install its requirements next to Rollyard on this host, or start it together with the head"
        )
    finding_head = asyncio.create_task(_directory(keys, address.head_url, print_line, timeout_s))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({finding_head, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not finding_head.done():
        finding_head.cancel()
        return
    _check_same(config, specs, finding_head.result(), address.head_url)
    serving = [asyncio.create_task(serve(address.launch(spec, keys), environ, stop, print_line)) for spec in specs]
    try:
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        ended = await asyncio.gather(*serving, return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error


async def _directory(keys: Keys, head_url: str, print_line: Callable[[str], None], timeout_s: float) -> Directory:
    transport = HttpTransport(ca_files=keys.ca_files)
    registry_client, started, reported = RegistryClient(transport, head_url, keys), time.monotonic(), False
    try:
        while True:
            try:
                return await registry_client.directory()
            except Failure as failure:
                if failure.kind in (FailureKind.WRONG_RUN, FailureKind.UNAUTHORIZED):
                    raise OperatorError(
                        f"the head at {head_url} belongs to a different run: every part of a run needs the same token "
                        "(ROLLYARD_TOKEN)"
                    ) from failure
                if failure.problem.code == UNTRUSTED:
                    raise OperatorError(failure.problem.detail) from failure
                if failure.kind not in _RETRYABLE or time.monotonic() > started + timeout_s:
                    detail = failure.problem.detail
                    raise RunError(f"no head responded at {head_url} within {timeout_s:g} s: {detail}") from failure
                if not reported:
                    print_line(f"waiting for the head at {head_url}")
                    reported = True
            await asyncio.sleep(_RETRY_S)
    finally:
        await transport.close()


def _check_same(config: RunConfig, specs: list[ServerSpec], directory: Directory, head_url: str) -> None:
    """Raise OperatorError unless the head uses the same settings for these servers."""
    own_settings = config.identity()
    for spec in specs:
        head_settings = directory.settings.get(spec.name)
        if head_settings is None:
            available = ", ".join(sorted(directory.servers))
            raise OperatorError(
                f"the head at {head_url} has no server {spec.name!r} in its configs (it has {available})"
            )
        differing = [
            key
            for key in {**head_settings, **own_settings[spec.name]}
            if head_settings.get(key, ...) != own_settings[spec.name].get(key, ...)
        ]
        if differing:
            listed = ", ".join(sorted(differing))
            raise OperatorError(
                f"the head has different settings for {spec.name} ({listed}): start every part with the same configs"
            )


def shared_keys(token: str | None, access: AccessRules | None = None, tls: TlsFiles | None = None) -> Keys:
    """Derive a run's keys from its token, which they do not reveal. Raises OperatorError if it cannot be one."""
    if not token or len(token) < MIN_TOKEN:
        found = "none is set" if not token else f"this one has {len(token)}"
        raise OperatorError(
            f"the parts of a distributed run need a shared token of at least {MIN_TOKEN} characters, but {found}: "
            "set the same one for every part, e.g. export ROLLYARD_TOKEN=$(openssl rand -hex 16)"
        )
    check_token(token)
    run_id, secret = derived(token, "run id")[:8], derived(token, "session secret")
    return Keys(run_id=run_id, secret=secret, token=token, access=access or AccessRules(), tls=tls)


def select_servers(servers: Sequence[ServerSpec], only: Sequence[str]) -> list[ServerSpec]:
    """Return the servers whose name or family is in `only`. Raises OperatorError on unknown names."""
    families = {FAMILY_ALIASES.get(name, name) for name in only} & set(FAMILIES)
    names = {spec.name for spec in servers}
    for name in only:
        if name not in names and FAMILY_ALIASES.get(name, name) not in families:
            known = [*sorted(names), *FAMILIES]
            hint = did_you_mean(name, known)
            raise OperatorError(f"--only {name!r} is neither a server nor a family{hint} (known: {', '.join(known)})")
    # Servers that run elsewhere are watched by the head's process alone.
    selected = [
        spec for spec in servers if (spec.name in only or spec.family in families) and spec.external_url is None
    ]
    if only and not selected:
        raise OperatorError(f"the configs do not define any server of the family {', '.join(only)}")
    return selected
