"""Boxes that are containers of a local engine, by its own client program: `docker` or `podman`.

A container has the files of an image, and with `plan.network` a network; otherwise only the loopback interface. Its
root user may change every file, also the programs that the tests use: a separate verifier is safe from that. It ends
with the server, whatever ends it. Its engine limits the memory and the number of processes of the whole container; the
storage limit applies to each file.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import posixpath
import re
import secrets
import socket
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.services.sandbox.box import Box, BoxDied, BoxEntry, BoxRefused, CommandResult, Need
from rollyard.services.sandbox.inside import libc
from rollyard.services.sandbox.inside.box_main import Output
from rollyard.services.sandbox.inside.jail_plan import BoxPlan

_START_S, _CLIENT_S, _PULL_S = 120.0, 60.0, 1800.0
_END_S = 5.0
_NO_ANSWER = -1
_MACHINES_STATUS = (_NO_ANSWER, 125, 137)
"""Exit statuses of a container that are not its ENTRYPOINT's: in time not ready, not started by the engine, killed."""
_MAX_TAR = 64 << 20
_MAX_PRINTED = 4096
_MAX_STATUS = 16
"""Maximum length of what is read after the mark: background processes may write there."""
_UNNEEDED = ("NET_RAW", "MKNOD", "AUDIT_WRITE")
"""Capabilities that Docker gives to a container's root user, and Podman does not. `sshd` needs SYS_CHROOT, package
managers need SETFCAP, and images with `sudo` need their setuid programs.
"""
_PROBE = """command -v timeout >/dev/null || exit 1
[ $$ = 1 ] || { [ $PPID = 1 ] && read -r init </proc/1/comm; }
case $init in ''|tini|tini-static|dumb-init|docker-init|catatonit) ;; *) exit 1 ;; esac
"""
"""Without `timeout`, every command would fail. The named programs end when the one that they have started does."""
_LEASH = r"""mark=$1 && shift && mkdir -p -- "$@" && exec 3<&0 && read -r line </proc/$$/stat || exit 1
for session in ${line##*) }; do [ $((field += 1)) = 4 ] && break; done
printf '\n%s %d\n' "$mark" "$session"
while :; do cat <&3 >/dev/null & wait $! && exit 0; done
"""
"""Process 1, or the child of an init: it ends, and the container with it, when the client that started it does. If
`cat` is killed with the other processes, another one takes its place. `wait` also collects the processes that have lost
their parent. It prints a line with its first argument, the mark, and its session when it runs.
"""
_KILL = "kill -9 -1; :"
"""Process 1 ignores it; its child `cat` is replaced."""
_KILL_OTHERS = """kill -STOP -1
while :; do
    found=
    for file in /proc/[0-9]*/stat; do
        pid=${file#/proc/} && pid=${pid%%/stat}
        read -r line 2>/dev/null <"$file" || continue
        set -- ${line##*) }
        case $4 in 1|$$|%d) continue ;; esac
        kill -9 "$pid" && [ "$1" != Z ] && found=1
    done 2>/dev/null
    [ "$found" ] || { kill -CONT -1; exit 0; }
done"""
"""Spares what the image's ENTRYPOINT has started, which is in the session of process 1 or of the leash. Each command is
in a session of its own, and a process cannot enter one that exists. What is stopped cannot fork before its turn. A
zombie (Z) may have threads that run.
"""
_COMMAND = (
    'exec 2>/dev/null; mark=$1 limit=$2; shift 2; (timeout -s KILL "$limit" "$@" 2>&1); printf "\\n%s %d\\n" "$mark" $?'
)
"""A line with the mark ends the output: the client itself would wait for processes in the background that hold it. The
shell's own word about a killed command goes nowhere.
"""


class ContainerBoxes:
    lacks: Mapping[Need, str] = {
        Need.STORAGE_LIMIT: "an engine limits the size of each file, not of all",
        Need.USERS: "all commands run as the user of the image",
    }

    def __init__(self, program: str, network: str) -> None:
        """`program`: the engine's client; `network`: the engine's network for containers and builds that need one."""
        self.name = program
        self._network = network
        self._configs: dict[str, dict[str, Any]] = {}
        """What the engine last said about each image."""

    async def check(self) -> None:
        try:
            await _ask_engine(self.name)
        except Failure as error:
            raise OperatorError(f"{error.problem.detail}; expected a running engine that this user may use") from error

    async def has(self, image: str) -> bool:
        """Return whether the engine has the image, whose configuration is then known."""
        arguments = ("image", "inspect", "--format", "{{json .Config}}", image)
        status, output = await _run_client(self.name, arguments, separate=True)
        if status == 0:
            self._configs[image] = json.loads(output) or {}
        return status == 0

    async def build(self, folder: str, tag: str, timeout_s: float) -> None:
        """Build the image `tag` from a folder with a Dockerfile. Raises BoxRefused with what the engine printed."""
        # BuildKit accepts only `none`, `host` and `default` here.
        network = () if self._network == "bridge" else ("--network", self._network)
        status, output = await self._client("build", *network, "--tag", tag, folder, timeout_s=timeout_s)
        if status:
            await _ask_engine(self.name)
            raise BoxRefused(f"it cannot be built: {output[-1000:].decode(errors='replace').strip()}")

    async def workdir_of(self, image: str) -> str:
        """Return the working directory of an image, after pulling it if need be. Raises OperatorError."""
        if not await self.has(image):
            status, output = await self._client("pull", "--quiet", image, timeout_s=_PULL_S)
            if status:
                raise OperatorError(f"the image {image} cannot be pulled: {_last(output)}")
            if not await self.has(image):
                raise OperatorError(f"the image {image} cannot be inspected")
        return str(self._configs[image].get("WorkingDir") or "/")

    async def start(self, plan: BoxPlan) -> Box:
        """Start a box of an image that is on this host (`build`, `workdir_of`).

        Raises BoxRefused if the image's ENTRYPOINT does not run the command that it gets.
        """
        if plan.image not in self._configs and not await self.has(plan.image):
            raise OperatorError(f"the image {plan.image} cannot be inspected")
        entrypoint = self._configs[plan.image].get("Entrypoint") or []
        rule = f'the ENTRYPOINT {json.dumps(entrypoint)} of the image must end with `exec "$@"`'
        if _drops_command(entrypoint):
            raise BoxRefused(rule)
        name = f"rollyard-box-{secrets.token_hex(8)}"
        limits = [f"--memory={plan.memory}", f"--memory-swap={plan.memory}", f"--pids-limit={plan.processes}"]
        limits += [f"--ulimit=nofile={plan.open_files}", f"--ulimit=fsize={plan.storage}", "--ulimit=core=0"]
        shown = [f"--volume={path}:{path}:ro" for path in plan.visible]
        options = [f"--network={self._network if plan.network else 'none'}", f"--hostname={plan.hostname}"]
        options += [f"--cap-drop={capability}" for capability in _UNNEEDED]
        options += ["--pull=never", "--rm", "--interactive", f"--name={name}", "--workdir=/"]
        mark = secrets.token_hex(8)
        leash = ("/bin/sh", "-c", _PROBE + _LEASH, "leash", mark, *(plan.folders or ("/tmp",)))
        client = await _started(self.name, "run", *options, *limits, *shown, plan.image, *leash)
        box = ContainerBox(self.name, name, client, plan)
        try:
            async with asyncio.timeout(_START_S):
                session, printed = await _session_of(client, mark)
                if session and entrypoint:
                    box.spare_entrypoint(session)
                if session and plan.endpoint:
                    await box.listen()
                status = 0 if session else await client.wait()
        except TimeoutError:
            session, status, printed = 0, _NO_ANSWER, b"it did not start in time"
        except BaseException:
            await box.close()
            raise
        if not session:
            await box.close()
            if entrypoint and status not in _MACHINES_STATUS:
                raise BoxRefused(": ".join(filter(None, [rule, _last(printed)])))
            found = _last(printed) or "no /bin/sh with `mkdir` and `timeout` in it"
            found += f" ({rule})" if entrypoint else ""
            raise OperatorError(f"a container of {plan.image} cannot start: {found}")
        return box

    async def _client(self, *arguments: str, timeout_s: float = _CLIENT_S) -> tuple[int, bytes]:
        return await _run_client(self.name, arguments, timeout_s=timeout_s)


class ContainerBox:
    """One container: a Box."""

    def __init__(self, program: str, name: str, client: asyncio.subprocess.Process, plan: BoxPlan) -> None:
        self.name = name
        self.listener: socket.socket | None = None
        self._program = program
        self._client = client
        self._output_limit = plan.output
        self._cancelled = False
        self._kill = _KILL
        self._drain: asyncio.Task[None] | None = None

    def spare_entrypoint(self, session: int) -> None:
        """Let what the image's ENTRYPOINT has started run until the box is closed, and read what it prints.

        `session`: that of the leash.
        """
        self._kill = _KILL_OTHERS % session
        self._drain = asyncio.create_task(_drained(self._client))

    def path(self, path: str) -> str:
        return path

    async def listen(self) -> None:
        """Create the listener in the container's network namespace, if this process may enter it."""
        arguments = ("inspect", "--format", "{{.State.Pid}} {{.Id}}", self.name)
        _, output = await _run_client(self._program, arguments, separate=True)
        pid, _, container = output.decode().strip().partition(" ")
        with contextlib.suppress(OSError):
            self.listener = await asyncio.to_thread(_listener_of, pid, container)

    async def run(
        self, argv: Sequence[str], *, cwd: str = "/", env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> CommandResult:
        if self._cancelled:
            await self.kill_processes()
        mark = secrets.token_hex(8).encode()
        options = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
        command = ("/bin/sh", "-c", _COMMAND, "box", mark.decode(), f"{timeout_s:.3f}", *argv)
        if any("\0" in word for word in (*command, *options, cwd)):
            return CommandResult(exit_code=127, output="ValueError: embedded null byte\n")
        try:
            arguments = ("exec", "--workdir", cwd, *options, self.name, *command)
            client = await _started(self._program, *arguments, stdin=asyncio.subprocess.DEVNULL)
        except OSError as error:  # the arguments are too long
            return CommandResult(exit_code=127, output=f"{error.strerror}\n")
        output, tail = Output(self._output_limit), b""
        started = time.monotonic()
        assert client.stdout is not None
        self._cancelled = True
        try:
            async with asyncio.timeout(timeout_s + _CLIENT_S):
                while piece := await client.stdout.read(1 << 16):
                    tail += piece
                    before, found, after = tail.partition(b"\n%s " % mark)
                    if found and (b"\n" in after or len(after) > _MAX_STATUS):
                        tail = before
                        break
                    if not found and (excess := len(tail) - 2 * len(mark) - 8) > 0:
                        output.add(tail[:excess])
                        tail = tail[excess:]
                else:
                    after = b""
        except TimeoutError as error:
            await _ask_engine(self._program)
            await self.close()
            raise BoxDied("the container does not answer") from error
        finally:
            await _end(client)
        self._cancelled = False
        output.add(tail)
        if not after:
            if await self._is_gone():
                raise BoxDied(f"the container has ended: {tail[-200:].decode(errors='replace').strip()}")
            return CommandResult(exit_code=-1, output=output.text(), output_dropped=output.dropped)
        found_status = after[:_MAX_STATUS].partition(b"\n")[0]
        status = int(found_status) if found_status.isdigit() else 127  # a command wrote after the mark, or a false one
        timed_out = status == 137 and time.monotonic() - started >= timeout_s
        code = -1 if timed_out else status
        return CommandResult(exit_code=code, output=output.text(), timed_out=timed_out, output_dropped=output.dropped)

    async def put(self, entries: Sequence[BoxEntry]) -> None:
        if not entries:  # Podman refuses an archive of nothing
            return
        archive = await asyncio.to_thread(_packed, entries)
        await self._call("cp", "-", f"{self.name}:/", stdin=archive)

    async def get(self, path: str, limit: int) -> list[BoxEntry] | None:
        follow = ("--follow-link",) if self._program == "docker" else ()  # Podman always does
        arguments = ("cp", *follow, f"{self.name}:{path}", "-")
        status, archive = await _run_client(self._program, arguments, limit=_MAX_TAR, separate=True)
        if status:
            if await self._is_gone():
                raise BoxDied("the container has ended")
            if status == _NO_ANSWER:
                raise BoxRefused(f"{path} cannot be read: {_last(archive)}")
            return None
        try:
            return await asyncio.to_thread(lambda: list(_unpacked(archive, path, limit)))
        except tarfile.TarError as error:
            raise BoxRefused(f"{path} cannot be read: {error}") from error

    async def remove(self, path: str) -> None:
        await self._call("exec", self.name, "rm", "-rf", "--", path)

    async def kill_processes(self) -> None:
        await self._call("exec", self.name, "/bin/sh", "-c", self._kill)
        self._cancelled = False

    async def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        if self._client.stdin is not None:
            self._client.stdin.close()  # ends process 1, even if this task is cancelled before the engine has answered
        await _run_client(self._program, ("rm", "--force", "--volumes", self.name), timeout_s=_CLIENT_S)
        await _end(self._client)
        if self._drain is not None:
            await self._drain

    async def _is_gone(self) -> bool:
        """Return whether the container has ended. Raises Failure if the engine does not answer."""
        arguments = ("inspect", "--format", "{{.State.Running}}", self.name)
        status, output = await _run_client(self._program, arguments, separate=True)
        if status == 0 and output.strip() == b"true":
            return False
        await _ask_engine(self._program)
        return True

    async def _call(self, *arguments: str, stdin: bytes = b"") -> None:
        status, output = await _run_client(self._program, arguments, stdin=stdin)
        if status:
            if b"no space left on device" in output.lower():  # the host's: the engine has no limit for all files
                raise Failure(FailureKind.SERVER_ERROR, f"{self._program}: {_last(output)}")
            if await self._is_gone():
                raise BoxDied("the container has ended")
            raise BoxRefused(_last(output))


async def _ask_engine(program: str) -> None:
    """Raise Failure if the engine does not answer: no command in a box is the cause of that."""
    status, output = await _run_client(program, ("info",))  # `podman version` needs no working engine
    if status:
        raise Failure(FailureKind.SERVER_ERROR, f"{program} info: {_last(output)}")


async def _started(
    *command: str, stdin: int = asyncio.subprocess.PIPE, stderr: int = asyncio.subprocess.STDOUT
) -> asyncio.subprocess.Process:
    """Start the engine's client. Raises OSError if the arguments are too long, and Failure if this host cannot."""
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C reaches the server alone
        )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise
        raise Failure(FailureKind.SERVER_ERROR, f"{command[0]} cannot be run: {error.strerror}") from error


async def _run_client(
    program: str,
    arguments: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_s: float = _CLIENT_S,
    limit: int = 1 << 20,
    separate: bool = False,
) -> tuple[int, bytes]:
    """Run the engine's client. Return its exit status, or _NO_ANSWER, and of its output at most the last `limit` bytes.

    If `separate`, the output is without standard error, and more than `limit` bytes raise BoxRefused.
    """
    stderr = asyncio.subprocess.DEVNULL if separate else asyncio.subprocess.STDOUT
    client = await _started(program, *arguments, stderr=stderr)
    assert client.stdin is not None and client.stdout is not None
    output = bytearray()

    async def read(stream: asyncio.StreamReader) -> None:
        while piece := await stream.read(1 << 16):
            output.extend(piece)
            if separate and len(output) > limit:
                raise BoxRefused(f"it contains more than {limit} bytes")
            del output[:-limit]

    async def write(stream: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(stream):
            stream.write(stdin)
            await stream.drain()

    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(read(client.stdout), write(client.stdin))
            return await client.wait(), bytes(output)
    except TimeoutError:
        return _NO_ANSWER, b"the engine did not answer within %d s" % timeout_s
    finally:
        await _end(client)


async def _end(client: asyncio.subprocess.Process) -> None:
    """Kill the client if it still runs, and close its output, which what it has started may hold."""
    client._transport.close()  # type: ignore[attr-defined]
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(client.wait(), _END_S)


def _drops_command(entrypoint: Sequence[str]) -> bool:
    """Return whether it is `sh -c SCRIPT`, as the ENTRYPOINT without brackets is, with a SCRIPT without `$@`."""
    shell, option, script = (*entrypoint, "", "", "")[:3]
    is_shell = posixpath.basename(shell) in ("sh", "bash", "dash", "ash")
    return is_shell and option == "-c" and not re.search(r"\$\{?[@*]", script)


async def _session_of(client: asyncio.subprocess.Process, mark: str) -> tuple[int, bytes]:
    """Return the session in the line with the mark, or 0 if the output ends without, and what came before."""
    assert client.stdout is not None
    printed = b""
    while piece := await client.stdout.read(1 << 16):
        printed += piece
        if found := re.search(rb"\n%s ([0-9]+)\n" % mark.encode(), printed):
            return int(found[1]), printed[: found.start()]
        printed = printed[-_MAX_PRINTED:]
    return 0, printed


async def _drained(client: asyncio.subprocess.Process) -> None:
    """Read the output until it ends, so that who writes it does not wait."""
    assert client.stdout is not None
    while await client.stdout.read(1 << 16):
        pass


def _last(output: bytes) -> str:
    """Return the last line."""
    return output.decode(errors="replace").strip().rpartition("\n")[2][:500]


def _packed(entries: Sequence[BoxEntry]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for entry in entries:
            member = tarfile.TarInfo(entry.path.lstrip("/"))
            member.mtime = int(time.time())
            if entry.kind == "folder":
                member.type, member.mode = tarfile.DIRTYPE, 0o755 if entry.mode is None else entry.mode
            elif entry.kind == "link":
                member.type, member.linkname = tarfile.SYMTYPE, entry.target
            else:
                member.size, member.mode = len(entry.data), 0o644 if entry.mode is None else entry.mode
            archive.addfile(member, io.BytesIO(entry.data))
    return packed.getvalue()


def _unpacked(archive: bytes, path: str, limit: int) -> Iterator[BoxEntry]:
    """Yield the entries of an archive whose first member is the file or folder at `path`."""
    left = limit
    top = ""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            top = top or member.name.split("/")[0]
            name = posixpath.normpath(posixpath.join(path, posixpath.relpath(member.name, top)))
            mode = member.mode & 0o777
            if member.isdir():
                yield BoxEntry(path=name, kind="folder", mode=mode)
            elif member.issym():
                yield BoxEntry(path=name, kind="link", target=member.linkname)
            elif member.isreg() or member.islnk():
                content = opened.extractfile(member)
                data = content.read(left + 1) if content is not None else b""
                left -= len(data)
                if left < 0:
                    raise BoxRefused(f"{path} contains more than {limit} bytes")
                yield BoxEntry(path=name, kind="file", data=data, mode=mode)


def _listener_of(pid: str, container: str) -> socket.socket:
    """Return a socket that listens on 127.0.0.1 in the network namespace of a container's process. Raises OSError, also
    if the process is not the container's: the engine may be on another host, where other processes have these numbers.
    """
    found_in = [Path("/proc", pid, name).read_text() for name in ("cgroup", "mountinfo")]
    if not container or not any(container in text for text in found_in):
        raise OSError(errno.ESRCH, f"process {pid} of this host does not belong to the container")
    made: list[socket.socket | OSError] = []

    def listen() -> None:  # in a thread of its own, because a namespace is a thread's
        try:
            opened = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                libc.enter_namespace(opened)
            finally:
                os.close(opened)
            made.append(socket.create_server(("127.0.0.1", 0)))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    found = made[0]
    if isinstance(found, OSError):
        raise found
    found.setblocking(False)
    return found
