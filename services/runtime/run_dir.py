"""A run's directory, `.rollyard/runs/<time>-<run id>/`: logs, config, and `head.json`, by which commands find it."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import yaml
from pydantic import ValidationError

from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.locked_files import open_private
from rollyard.records.run_types import HeadFile, HeadServer
from rollyard.records.types import Json
from rollyard.services.head.registry_client import origin_of
from rollyard.services.http.access import kernel_sockets, listener_owner, own_uid
from rollyard.services.http.tls import UNTRUSTED
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym import identify_head

HOME = Path(".rollyard") / "runs"
KEPT_RUNS = 50
"""How many folders of ended runs are kept when another run starts."""
_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-\w+")


class RunFolder:
    def __init__(self, path: Path, logs: Path | None = None) -> None:
        """`logs`: the folder of the servers' logs, if it is not in this directory."""
        self.path = path
        self.logs = path / "logs" if logs is None else logs

    @property
    def base(self) -> Path:
        """The working directory in which the run was started."""
        return self.path.absolute().parents[len(HOME.parts)]

    @classmethod
    def create(cls, base: Path, run_id: str, logs: Path | None = None) -> RunFolder:
        """Create a run directory under `base`. Its name begins with the time, so that names sort by start time."""
        folder = cls(base / HOME / f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id}", logs)
        try:
            folder.path.parent.mkdir(parents=True, exist_ok=True)
            folder.path.mkdir(mode=0o700)
            folder.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(base, error) from error
        _tidy(folder.path.parent)
        return folder

    @staticmethod
    def check(base: Path) -> None:
        """Raise OperatorError if `create` would fail, without creating anything."""
        parent = base / HOME
        while not os.path.lexists(parent):
            parent = parent.parent
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            raise _unwritable(base, error) from error

    def write_head(self, head: HeadFile) -> None:
        """Write `head.json` for other commands. Only its owner can read it, because it may contain the run token."""
        path = self.path / "head.json"
        with open_private(path, os.O_TRUNC) as file:
            file.write(orjson.dumps(head.model_dump()))

    def write_config(self, tree: Json) -> None:
        """Write the run's merged config. Secrets must already be redacted."""
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
        with open_private(self.path / "config.yaml", os.O_TRUNC) as file:
            file.write(text.encode())

    def end(self) -> None:
        """Delete `head.json`, so that commands no longer find the run, and close its files to other users."""
        (self.path / "head.json").unlink(missing_ok=True)
        for path in self.path.rglob("*"):
            with suppress(OSError):
                if not path.is_symlink() and path.stat().st_uid == os.geteuid():
                    path.chmod(0o700 if path.is_dir() else 0o600)


def _unwritable(base: Path, error: OSError) -> OperatorError:
    message = f"cannot create {base / HOME}, where a run writes its logs: {error.strerror}"
    return OperatorError(f"{message}. Start the run from a folder that you may write to.")


def _tidy(runs: Path) -> None:
    """Delete what ended runs of this user have left: `head.json` after a crash, and all but the newest folders."""
    ended = 0
    for path in sorted(runs.iterdir(), reverse=True):
        with suppress(OSError):
            found = path.lstat()
            if not _NAME.fullmatch(path.name) or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if os.path.lexists(path / "head.json"):
                try:
                    head = HeadFile.model_validate_json(_read_own(path / "head.json"))
                except ValidationError:
                    continue
                if head.host not in ("", socket.gethostname()) or _alive(head.pid):
                    continue
                (path / "head.json").unlink()
            ended += 1
            if ended > KEPT_RUNS:
                shutil.rmtree(path, ignore_errors=True)


def running_heads(base: Path) -> list[HeadFile]:
    """Return the heads of this user's live runs that were started from `base`, newest first."""
    return [head for head in _heads(base) if _alive(head.pid)]


def killed_heads(base: Path) -> list[HeadFile]:
    """Return the heads of this user's runs that were started from `base` and did not end by themselves."""
    return [head for head in _heads(base) if not _alive(head.pid)]


def _heads(base: Path) -> list[HeadFile]:
    heads: list[HeadFile] = []
    for path in sorted((base / HOME).glob("*/head.json"), reverse=True):
        try:
            head = HeadFile.model_validate_json(_read_own(path))
        except (OSError, ValidationError):
            continue
        if _same_folder(head.folder, base):
            heads.append(head)
    return heads


def _read_own(path: Path) -> bytes:
    """Return the file's bytes. Raises PermissionError if another user owns it, because the folder may be shared."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is not owned by this user")
        return file.read()


def _same_folder(started_in: str, base: Path) -> bool:
    """Return whether `started_in` is `base`. False if the run directory is a symlink to another folder's."""
    try:
        return not started_in or Path(started_in).samefile(base)
    except FileNotFoundError:  # the folder has been renamed
        return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # exited, or the id now belongs to another user's process
        return False
    return True


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
        named = HeadFile.at(head, token)
        _accept_authorities(transport, [one for one in running_heads(here) if one.url == named.url])
        try:
            return await identify_head(transport, named, nemo_gym=nemo_gym)
        except Failure as failure:
            if failure.problem.code == UNTRUSTED:
                raise OperatorError(failure.problem.detail) from failure
            raise _not_found([f"{named.url}: {failure.problem.detail}"]) from failure
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
        _accept_authorities(transport, [candidate])
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


def _accept_authorities(transport: HttpTransport, heads: Sequence[HeadFile]) -> None:
    for head in heads:
        if head.ca_file is not None:
            transport.trust.add(head.ca_file)


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
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
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
    return f"{url} belongs to user {others}; to use it anyway, pass --head {url.removeprefix('http://')}"


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


def head_address(head: str | None, head_server: HeadServer | None) -> str | None:
    """Return the address that the options contain, or None. Raises OperatorError if they contain two."""
    if head_server is None:
        return head
    if head is not None:
        raise OperatorError("--head and --head-server are the same setting: pass one of them")
    host = f"[{head_server.host}]" if ":" in head_server.host else head_server.host
    return f"{host}:{head_server.port}"
