"""Finds the running stack that a command should use. Another user's stack is used only if --head points to it."""

from __future__ import annotations

import pwd
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field

from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.run_types import HeadFile
from rollyard.records.types import Record
from rollyard.services.head.registry_client import origin_of
from rollyard.services.http.access import kernel_sockets, listener_owner, own_uid
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym import identify_head
from rollyard.services.runtime.run_dir import killed_heads, running_heads

DEFAULT_HEAD = "http://127.0.0.1:11000"
PrintLine = Callable[[str], None]
ListenerOwner = Callable[[str, int], int | None]
"""(address, port) -> user id of the local process that listens on that port, or None."""


def on_stderr(text: str) -> None:
    """Print a message to stderr, to keep it out of a command's output."""
    print(text, file=sys.stderr)


def without_repeats(print_line: PrintLine) -> PrintLine:
    """Return a `print_line` that prints each message only once, for commands that poll."""
    printed: set[str] = set()

    def say_once(text: str) -> None:
        if text not in printed:
            printed.add(text)
            print_line(text)

    return say_once


def _listener(address: str, port: int) -> int | None:
    with closing(kernel_sockets()) as table:
        return listener_owner(table, (address, port))


async def find_run(
    transport: HttpTransport,
    here: Path,
    head: str | None,
    token: str | None,
    print_line: PrintLine = on_stderr,
    *,
    default: str | None = DEFAULT_HEAD,
    listener: ListenerOwner = _listener,
    nemo_gym: bool = False,
) -> HeadFile:
    """Return the head that a command should use.

    This is the one at `head`, else that of the newest run started from this folder, else from the nearest folder above
    it, else the one at `default`. Private runs, such as that of an ng_eval, come after the others of these folders.
    Without `head`, only this user's runs are considered; without `default`, only runs
    started from this folder or above it. If the run was not started from this folder, `print_line` receives a message.
    With `nemo_gym`, the head at `head` or `default` may be that of a NeMo Gym stack.

    Raises RunError, which lists the URLs that were tried.
    """
    if head is not None:
        url = (head if "://" in head else f"http://{head}").rstrip("/")
        named = HeadFile(run_id="", url=url, pid=0, token=token)
        try:
            return await identify_head(transport, named, nemo_gym=nemo_gym)
        except Failure as failure:
            raise _not_found([f"{url}: {failure.problem.detail}"]) from failure
    killed = [head for head in killed_heads(here) if not head.private][:1]
    why_none = "".join(
        f"run {head.run_id}, which was started from this folder, was killed: its process {head.pid} no longer runs"
        for head in killed
    )
    tried: list[str] = [why_none] if why_none else []
    why_none = why_none or "no run was started from this folder"
    elsewhere = [HeadFile(run_id="", url=default, pid=0, token=token)] if default else []
    above = _heads_above(here)
    for candidate in [*sorted([*running_heads(here), *above], key=lambda run: run.private), *elsewhere]:
        # Checked before anything is sent, because the token must only be sent to this user's run.
        if refused := _why_foreign(candidate.url, listener):
            tried.append(refused)
            continue
        try:
            found = await identify_head(transport, candidate, nemo_gym=nemo_gym and not candidate.run_id)
            run_id = found.run_id
            if found.stack == "nemo_gym":
                print_line(f"using the NeMo Gym stack at {candidate.url}: {why_none}")
                return found
            if candidate.run_id not in ("", run_id):
                tried.append(f"{candidate.url} now belongs to another run ({run_id})")
                continue
            if candidate in above or not candidate.run_id:
                started_in = candidate.folder or (await origin_of(transport, candidate)).folder
                print_line(f"using run {run_id} of {started_in} at {candidate.url}: {why_none}")
        except Failure as failure:
            tried.append(f"{candidate.url}: {failure.problem.detail}")
            continue
        return candidate.model_copy(update={"run_id": run_id, "token": candidate.token or token})
    raise _not_found(tried)


def _heads_above(here: Path) -> list[HeadFile]:
    """Return the heads of runs that were started in a folder above `here`, the nearest folder first."""
    return [head for folder in here.absolute().parents for head in running_heads(folder)]


def _not_found(tried: Sequence[str]) -> RunError:
    listed = "".join(f"\n  {line}" for line in tried or ["no run was started from this folder or above it"])
    hint = "Start one with ng_run from this folder, or pass its address with --head HOST:PORT."
    return RunError(f"no running stack found:{listed}\n{hint}")


def _why_foreign(url: str, listener: ListenerOwner) -> str:
    """Return why `url` is not a server of this user; empty if it is one, or if it is on a different host."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        return f"{url}: {error.strerror}"
    here = [address for address in addresses if _is_here(address)]
    if not here:
        return ""
    owners = {listener(address, port) for address in here} - {None}
    if owners == {own_uid()}:
        return ""
    others = ", ".join(_name(uid) for uid in owners if uid not in (None, own_uid()))
    if not others:
        return f"{url}: no server of this user listens there"
    return f"{url} belongs to user {others}; to use it anyway, pass --head {host}:{port}"


def _is_here(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class HeadServer(Record):
    """NeMo Gym's setting `head_server`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=11000, ge=1, le=65535)


def head_address(head: str | None, head_server: HeadServer | None) -> str | None:
    """Return the address that the options contain, or None. Raises OperatorError if they contain two."""
    if head_server is None:
        return head
    if head is not None:
        raise OperatorError("--head and --head-server are the same setting: pass one of them")
    host = f"[{head_server.host}]" if ":" in head_server.host else head_server.host
    return f"{host}:{head_server.port}"
