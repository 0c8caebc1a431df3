"""One run of vLLM under its reaper, from its start to the exit of its last process.

The reaper is `process_group.py`, which kills every process of the engine when vLLM or the model server dies. It holds a
lock on the file `alive` in the engine's folder: if it dies itself, vLLM's processes exit (process_guard.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollyard.records.locked_files import open_private
from rollyard.records.process_group import guarded
from rollyard.responses_api_models.local_vllm_model.settings import shown

GRACE_S = 1.5
"""Time between SIGTERM and SIGKILL. vLLM exits 0.6 s after SIGTERM, and the supervisor gives a server only a few
seconds."""
STOP_TIMEOUT_S = 30.0
"""How long a reaper may take to kill vLLM's processes before it is killed."""
_HERE = Path(__file__).parent
_MAX_TAIL_LENGTH = 256 * 1024


def make_folder() -> Path:
    """Create a folder for a new engine, which contains the reaper's lock, the process guard, and vLLM's sockets."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
    (folder / "alive").touch()
    (folder / "guard").mkdir()
    shutil.copyfile(_HERE / "process_guard.py", folder / "guard" / "sitecustomize.py")
    return folder


class EngineProcess:
    def __init__(self, reaper: asyncio.subprocess.Process, folder: Path, log: Path, offset: int) -> None:
        self.ended = asyncio.create_task(self._wait_and_clean_up(reaper, folder))
        """Done when none of the engine's processes is left; the result is the exit status (the negative signal number
        if vLLM was killed)."""
        self._reaper = reaper
        self._log = log
        self._begin = self._read = offset
        self._rest = ""

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path) -> EngineProcess:
        with open_private(log) as output, (folder / "alive").open("rb") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)  # the reaper inherits the lock, and holds it until it dies
            output.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {shown(command)}\n".encode())
            output.flush()
            offset = output.tell()
            reaper = await asyncio.create_subprocess_exec(
                *guarded(command, folder),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**environ, MARK: str(folder)},
                pass_fds=(alive.fileno(),),
                start_new_session=True,  # so that it survives kill -9 of this process group and cleans up afterwards
            )
        return cls(reaper, folder, log, offset)

    async def stop(self) -> None:
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self.ended], timeout=GRACE_S)
        if not done:
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
            done, _ = await asyncio.wait([self.ended], timeout=STOP_TIMEOUT_S)
        if not done:
            self._signal(signal.SIGKILL)
            await self.ended

    def news(self) -> list[str]:
        """Return the complete lines printed since the last call; each state of a progress bar is a separate line."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read(_MAX_TAIL_LENGTH)
        self._read += len(text)
        *lines, self._rest = (self._rest + text.decode("utf-8", "replace")).replace("\r", "\n").split("\n")
        return lines

    def printed(self) -> list[str]:
        with self._log.open("rb") as file:
            file.seek(max(self._begin, file.seek(0, os.SEEK_END) - _MAX_TAIL_LENGTH))
            return file.read().decode("utf-8", "replace").replace("\r", "\n").splitlines()

    async def _wait_and_clean_up(self, reaper: asyncio.subprocess.Process, folder: Path) -> int:
        status = await reaper.wait()
        # If the reaper was killed, vLLM's processes exit on their own; this waits, and kills those that do not.
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while await asyncio.to_thread(engine_processes, folder) and time.monotonic() < deadline:
            await asyncio.to_thread(end_orphans)
            await asyncio.sleep(0.02)
        shutil.rmtree(folder, ignore_errors=True)
        return 128 - status if 128 < status <= 128 + signal.SIGRTMAX else status

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._reaper.send_signal(number)


MARK = "ROLLYARD_ENGINE"
FOLDERS = "rollyard-engine-"
YOUNG_S = 600.0


def end_orphans() -> list[int]:
    """Kill every process of this user whose engine has no reaper, and return their ids.

    They are found by an environment variable that they inherit. The process guard kills Python processes within
    milliseconds; this finds all others. SPT_NOENV keeps the variable readable when vLLM sets process titles.

    Python's resource trackers are spared; they exit after they have unlinked the shared memory of the other processes.
    """
    return [pid for pid, folder in _marked() if not has_reaper(folder) and not _is_tracker(pid) and _killed(pid)]


def remove_folders(within: Path) -> None:
    """Remove the folders of engines without a reaper, but no new ones: their reapers may be starting."""
    for folder in within.glob(f"{FOLDERS}*"):
        with contextlib.suppress(OSError):
            stat = folder.stat()
            if stat.st_uid == os.getuid() and time.time() - stat.st_mtime > YOUNG_S and not has_reaper(folder):
                shutil.rmtree(folder, ignore_errors=True)


def engine_processes(folder: Path) -> list[int]:
    return [pid for pid, found in _marked() if found == folder]


def has_reaper(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / "alive", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _marked() -> list[tuple[int, Path]]:
    prefix = f"{MARK}=".encode()
    # In another mount namespace (a container) the path refers to another folder.
    own_namespace = _namespace("self")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid != os.getuid():
                continue
            for entry in (process / "environ").read_bytes().split(b"\0"):
                if entry.startswith(prefix) and _namespace(process.name) == own_namespace and _runs(process):
                    found.append((int(process.name), Path(os.fsdecode(entry[len(prefix) :]))))
    return found


def _runs(process: Path) -> bool:
    return (process / "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _namespace(process: str) -> str:
    return str(Path("/proc", process, "ns", "mnt").readlink())


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
